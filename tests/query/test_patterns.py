"""Readers accept what `watch` accepts: names, globs, regular expressions, module classes, lists of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import layerscope as ls
from layerscope import widgets
from layerscope.errors import LayerscopeError


class Scaled(nn.Linear):
    """A subclass."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ls.Run:
    torch.manual_seed(0)  # else a ReLU may give zeros alone, which have no exponents
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), Scaled(3, 3), nn.ReLU())
    folder = tmp_path_factory.mktemp("patterns") / "run"
    with ls.watch(model, to=folder, every=1) as recorder:
        model(torch.randn(4, 2)).sum().backward()
        recorder.step(loss=1.0, accuracy=0.5)
    return ls.open(folder)


@pytest.mark.parametrize(
    ("sites", "found"),
    [
        (re.compile(r"^2"), {"2", "2.weight", "2.bias"}),
        ([re.compile(r"^2$"), "1"], {"1", "2"}),
        (["1", ["3", [re.compile("^2$")]]], {"1", "2", "3"}),
        (nn.ReLU, {"1", "3"}),
        (nn.Linear, {"0", "0.weight", "0.bias", "2", "2.weight", "2.bias"}),
        (Scaled, {"2", "2.weight", "2.bias"}),
        ([nn.Sequential, "1"], {"(model)", "1"}),
        (("0", "1"), {"0", "1"}),
        (iter(["0", "1"]), {"0", "1"}),
    ],
)
def test_sites_are_chosen_as_in_watch(run: ls.Run, sites: Any, found: set[str]) -> None:
    assert set(run.stats(sites, stat="rms")["site"]) == found


@pytest.mark.parametrize("read", ["stats", "histograms", "quantiles", "exponents", "values"])
def test_every_table_takes_regular_expressions_and_classes(run: ls.Run, read: str) -> None:
    table = getattr(run, read)([re.compile("^0$"), nn.ReLU], kind=re.compile("output"), mode=["train"])
    assert read == "values" or set(table["site"]) == {"0", "1", "3"}


def test_kinds_statistics_and_metrics_take_regular_expressions(run: ls.Run) -> None:
    table = run.stats("0*", kind=[re.compile("^weight")], stat=re.compile("^(rms|max)$"))
    assert set(table["kind"]) == {"weight", "weight_grad"}
    assert {"rms", "max"} <= set(table.arrow().column_names)
    assert "accuracy" not in run.metrics([re.compile("^l")]).arrow().column_names


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sites": re.compile("nowhere")}, "No site matches 'nowhere'"),
        ({"sites": nn.Conv2d}, "No module is a Conv2d. There are: Linear, ReLU, Scaled, Sequential"),
        ({"sites": 3}, "A site is selected by .* got 3"),
        ({"sites": ["0", 3]}, "A site is selected by .* got 3"),
        ({"sites": re.compile(b"0")}, "A site is selected by"),
        ({"sites": ["0", None]}, "No site matches ''"),
        ({"kind": nn.Linear}, "A kind is not a module"),
        ({"stat": 3}, "A statistic is selected by .* got 3"),
    ],
)
def test_what_chooses_nothing_is_named(run: ls.Run, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(LayerscopeError, match=message):
        run.stats(**asked)


def test_classes_choose_nothing_in_a_run_without_a_model(tmp_path: Path) -> None:
    with ls.watch(None, to=tmp_path / "run", every=1) as recorder:
        recorder.begin()
        recorder.record("x", torch.ones(2, 2))
        recorder.step()
    with pytest.raises(LayerscopeError, match="has no module classes"):
        ls.open(tmp_path / "run").stats(nn.Linear)


@pytest.mark.parametrize(
    "site", [["2"], re.compile("^2$"), [re.compile("^2$")], "2", pytest.param(["2", "2"], id="twice")]
)
def test_show_takes_whatever_chooses_one_site(run: ls.Run, site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[str] = []
    monkeypatch.setattr(widgets, "show", lambda path, start: starts.append(start))
    run.show("histogram", site=site, kind=["output"], stat=["rms"])
    assert "site=2&kind=output&stat=rms" in starts[0]


@pytest.mark.parametrize("site", [["0", "2"], nn.ReLU, "*"])
def test_show_refuses_several_sites_and_names_them(run: ls.Run, site: Any) -> None:
    with pytest.raises(LayerscopeError, match=r"Expected one site, .* matches \d+: '.*Pass one of them"):
        run.show("histogram", site=site)
