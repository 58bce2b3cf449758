"""A run as one file: what it holds, and how large it may be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import layerscope as ls
from layerscope.cli.main import main
from layerscope.errors import SelectError
from layerscope.server import app
from layerscope.server import one_file as module
from layerscope.server.one_file import OfflineApi, report
from tests.server.decoding import decode
from tests.server.runs import write_run
from tests.views.test_html import INDEX, unpacked


@pytest.fixture(autouse=True)
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that needs no build."""
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text(INDEX)
    (page / "assets" / "index-a.js").write_text("")
    (page / "assets" / "index-a.css").write_text("")
    monkeypatch.setattr(module, "STATIC", page)
    monkeypatch.setattr(app, "STATIC", page)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "first"
    write_run(folder, steps=6)
    ls.trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.randn(2, 4)).save(folder, step=3)
    return folder


def held(html: str) -> dict[str, bytes]:
    return unpacked(html.split('id="layerscope-answers"')[1].split(">", 1)[1].split("<", 1)[0])


def paths(html: str) -> list[str]:
    return list(held(html))


def test_a_small_run_is_held_as_a_whole(run: Path) -> None:
    made = report(run)
    assert made.holds == "1 of 1 histories; trace 1 with 4 of 4 operations and 4 of 4 tensors"
    places = {path.split("\n")[0].rsplit("/", 1)[1] for path in paths(made.html)}
    assert {"runs", "sites", "timeline", "findings", "scalar", "histogram", "heatmap"} <= places
    assert {"traces", "trace", "trace-numbers", "operation", "operations", "value"} <= places


def test_the_file_stays_within_its_size_and_says_what_it_holds(run: Path) -> None:
    whole, bare = report(run), report(run, most_bytes=0)
    limited = report(run, most_bytes=6_000)
    assert len(bare.html) < len(limited.html) < len(whole.html)
    assert len(limited.html) - len(bare.html) < 8_000
    assert limited.holds != whole.holds


def test_only_histories_that_are_held_are_offered(run: Path) -> None:
    source = OfflineApi(run)
    assert source.ask("api/run/first/sites", {})
    source.close()
    assert "0 of 1 histories" in report(run, most_bytes=0).holds


def test_a_report_counts_the_histories_that_it_left_out(run: Path) -> None:
    for most_bytes, left_out in ((0, 1), (12_000_000, 0)):
        answers = held(report(run, most_bytes=most_bytes).html)
        assert decode(answers["api/run/first/sites"])["left_out"] == left_out
        (entry,) = decode(answers["api/runs"])["runs"]
        assert entry["findings"] is not None


def test_heat_maps_leave_room_for_histories(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    with ls.watch(model, torch.optim.SGD(model.parameters(), 0.1), to=tmp_path / "run", every=1, kinds="all") as run:
        for _ in range(9):
            model(torch.randn(8, 4)).square().mean().backward()
            run.step()
    held_there = int(report(tmp_path / "run", most_bytes=120_000).holds.split(" of ")[0])
    assert 0 < held_there < int(report(tmp_path / "run").holds.split(" of ")[0])


def test_a_folder_of_runs_is_refused_with_the_name_of_one(run: Path) -> None:
    with pytest.raises(SelectError, match=r"such as .*first"):
        report(run.parent)
    (run.parent / "empty").mkdir()
    with pytest.raises(SelectError, match="no run at"):
        report(run.parent / "empty")


def test_the_command_writes_the_file_and_says_how_large_it_is(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mail" / "first.html"
    assert main(["report", str(run), "-o", str(target)]) == 0
    assert target.is_file()
    assert "kB, 1 of 1 histories" in capsys.readouterr().out
    assert main(["report", str(run / "nowhere"), "-o", str(target)]) == 2
