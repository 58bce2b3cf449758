"""What the page asks of the traces in a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch import nn

import layerscope as ls
from layerscope.server.app import create_app
from layerscope.traces import Op
from tests.server.conftest import HOST
from tests.server.test_routes import asked, refused


class Net(nn.Module):
    """A convolution and a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.cell = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: torch.Tensor = self.conv(x).mean((2, 3))
        for _ in range(3):
            state = torch.tanh(self.cell(state))  # the line that the loop runs
        return state


@pytest.fixture(scope="module")
def trace() -> ls.Trace:
    torch.manual_seed(0)
    trace = ls.trace(Net(), torch.randn(2, 3, 16, 16))
    assert isinstance(trace.output, torch.Tensor)
    trace.output.sum().backward()
    return trace


@pytest.fixture
def traced(trace: ls.Trace, tmp_path: Path) -> Iterator[TestClient]:
    trace.save(tmp_path / "runs" / "net")
    trace.save(tmp_path / "runs" / "net", step=7)
    with TestClient(create_app(tmp_path / "runs"), base_url=HOST, raise_server_exceptions=False) as client:
        yield client


def get(client: TestClient, place: str, /, **query: object) -> Any:
    return asked(client, f"/api/run/net/{place}?{'&'.join(f'{k}={v}' for k, v in query.items())}")


def one(trace: ls.Trace, key: str) -> Op:
    found = trace[key]
    assert isinstance(found, Op)
    return found


def op(trace: ls.Trace, key: str) -> int:
    return one(trace, key).record.index


def test_the_list_has_every_trace_with_its_step(traced: TestClient, trace: ls.Trace) -> None:
    entries = get(traced, "traces")["traces"]
    assert [(entry["name"], entry["model"], entry["step"]) for entry in entries] == [
        ("000001", "Net", None),
        ("000002", "Net", 7),
    ]
    assert entries[0]["operations"] == entries[0]["values"] == len(trace)
    assert entries[0]["gradients"] > 0


def test_the_overview_adds_up_what_operations_have_and_ranks_them(traced: TestClient, trace: ls.Trace) -> None:
    found = get(traced, "trace-overview", trace="000001")
    facts = {fact["name"]: fact["text"] for fact in found["facts"]}
    assert facts["Operations"] == f"{len(trace)} in 7 module calls"
    assert facts["Parameters"] == "296 elements (1.18 kB)"
    ranked = {ranking["field"]: ranking for ranking in found["rankings"]}
    assert set(ranked) == {"elapsed_s", "flops", "size_bytes"}
    assert ranked["flops"]["operations"][0]["label"] == one(trace, "conv2d_1").label
    assert ranked["flops"]["total"] == sum(each.record.flops or 0 for each in trace)
    assert f"{ranked['flops']['total']:,.0f}" == facts["FLOPs"]
    for ranking in ranked.values():
        assert list(ranking["values"]) == sorted(ranking["values"], reverse=True)
        assert len(ranking["operations"]) == len(ranking["values"]) <= 10


def test_a_run_without_traces_has_an_empty_list(client: TestClient) -> None:
    assert asked(client, "/api/run/first/traces")["traces"] == []


def test_an_operation_says_what_the_trace_says(traced: TestClient, trace: ls.Trace) -> None:
    at = op(trace, "tanh_1:2")
    found = get(traced, "operation", trace="000001", op=at)
    assert found["label"] == "tanh_1_5:2"
    assert [link["label"] for link in found["parents"]] == [parent.label for parent in one(trace, "tanh_1:2").parents]
    assert [link["operation"] for link in found["passes"]] == [
        each.record.index for each in one(trace, "tanh_1:2").layer
    ]
    assert found["has_value"]
    assert found["has_gradient"]
    here = found["stack"][0]
    assert "the line that the loop runs" in here["code"][here["line"] - here["first_line"]]
    assert here["file"] == __file__


def test_code_is_that_of_the_time_of_the_trace_and_no_file_is_read(
    traced: TestClient, trace: ls.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linecache.getlines", lambda *_: pytest.fail("a file was read"))
    assert get(traced, "operation", trace="000001", op=op(trace, "tanh_1:1"))["stack"][0]["code"]


def test_every_operation_is_in_a_part_whose_groups_are_told(traced: TestClient, trace: ls.Trace) -> None:
    picture = get(traced, "trace", trace="000001")
    sent = (picture["modules"], picture["inside"]["operations"])
    parents = dict(pair for parts in sent for pair in zip(parts["parts"], parts["parents"], strict=True))
    for at in range(len(trace)):
        found = get(traced, "operation", trace="000001", op=at)
        chain, part = [], found["part"]
        while part > 0:
            part = parents[part]
            chain.append(part)
        assert [crumb["id"] for crumb in found["around"]] == chain[::-1]


def test_the_value_is_the_part_that_is_asked_for(traced: TestClient, trace: ls.Trace) -> None:
    at = op(trace, "conv2d_1")
    kept = one(trace, "conv2d_1").value.detach().numpy()
    grid = get(traced, "value", trace="000001", op=at, what="value", at="1")
    assert (grid["picture"], grid["tiles"]) == ("grid", 8)
    assert np.array_equal(grid["cells"].reshape(8, 16, 16), kept[1])
    matrix = get(traced, "value", trace="000001", op=at, what="value", picture="matrix", at="1.5")
    assert np.array_equal(matrix["cells"].reshape(16, 16), kept[1, 5])
    gradient = get(traced, "value", trace="000001", op=at, what="gradient")
    (known,) = one(trace, "conv2d_1").grads
    assert np.array_equal(gradient["cells"].reshape(8, 16, 16), known.numpy()[0])


def test_the_search_finds_labels_and_modules_by_words(traced: TestClient) -> None:
    found = get(traced, "operations", trace="000001", search="conv%20relu")
    assert [link["label"] for link in found["operations"]] == ["relu_1_2"]
    assert found["matches"] == 1
    assert get(traced, "operations", trace="000001", search="nothing")["operations"] == []


def test_numbers_color_every_part_that_took_time(traced: TestClient) -> None:
    found = get(traced, "trace-numbers", trace="000001", field="elapsed_s")
    assert len(found["parts"]) == len(found["values"]) > 3
    assert (found["values"] > 0).any()


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("trace?trace=../../etc", 404, "has no trace"),
        ("trace?trace=000009", 404, "It has 2 of them"),
        ("operation?trace=000001&op=9999", 404, "has no operation 9999"),
        ("operation?trace=000001", 400, "lacks 'op'"),
        ("value?trace=000001&op=0&what=code", 400, "must be one of value, gradient"),
        ("value?trace=000001&op=0&what=gradient", 404, "was not kept"),
        ("value?trace=000001&op=0&what=value&at=-1", 400, "whole numbers"),
        ("trace-numbers?trace=000001&field=label", 400, "must be one of"),
    ],
)
def test_what_is_not_there_is_refused_with_a_reason(traced: TestClient, path: str, status: int, words: str) -> None:
    assert words in refused(traced, f"/api/run/net/{path}", status)


def test_a_damaged_trace_is_said_to_be_damaged(traced: TestClient, tmp_path: Path) -> None:
    record = tmp_path / "runs" / "net" / "traces" / "000001" / "trace.json"
    record.write_text(record.read_text()[:100])
    entry, *_ = asked(traced, "/api/run/net/traces")["traces"]
    assert "trace.json is damaged" in entry["failure"]
    assert "trace.json is damaged" in refused(traced, "/api/run/net/trace?trace=000001", 409)
