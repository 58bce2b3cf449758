"""`Run.show()` outside of notebooks: one file, which begins where it was asked to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

import layerscope as ls
from layerscope import widgets
from layerscope.errors import ArgumentError, SelectError
from tests.repo.source import ROOT
from tests.server.runs import write_run

pytestmark = pytest.mark.feature("T5")


def begins(file: object) -> dict[str, list[str]]:
    assert isinstance(file, Path)
    found = re.search(r'data-start="#([^"]*)"', file.read_text(encoding="utf-8"))
    assert found is not None
    return parse_qs(found[1].replace("&amp;", "&"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ls.Run:
    monkeypatch.setattr(widgets, "has_screen", lambda: False)
    write_run(tmp_path / "run")
    return ls.open(tmp_path / "run")


def test_a_run_is_shown_from_the_view_site_kind_statistic_and_step_that_were_asked_for(run: ls.Run) -> None:
    site, kind = run.series()["site"][0], run.series()["kind"][0]
    assert begins(run.show()) == {"view": ["charts"]}
    asked = {"view": "heatmap", "site": site, "kind": kind, "stat": "std", "step": 3}
    assert begins(run.show(**asked)) == {name: [str(value)] for name, value in asked.items()}
    histogram = begins(run.show("histogram", axis="exponent", format="float8_e4m3fn", every=2))
    assert histogram == {
        "view": ["charts"],
        "oneStep": ["1"],
        "axis": ["exponent"],
        "format": ["float8_e4m3fn"],
        "every": ["2"],
    }


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"view": "heat"}, "No view matches 'heat' among 8 views. Near it: 'heatmap'"),
        ({"site": "nowhere"}, "No site matches 'nowhere'"),
        ({"kind": "outputs"}, "No kind matches 'outputs'"),
        ({"stat": "median"}, "No statistic matches 'median'"),
        ({"axis": "log"}, "No axis matches 'log' among 3 axes"),
        ({"format": "fp8"}, "No format matches 'fp8'"),
        ({"every": 0}, "every=0 shows no step"),
    ],
)
def test_what_the_run_does_not_have_is_told_with_what_it_has(asked: dict[str, Any], told: str, run: ls.Run) -> None:
    with pytest.raises((ArgumentError, SelectError), match=re.escape(told)):
        run.show(**asked)


def test_python_knows_the_views_of_the_page() -> None:
    listed = re.search(r"export const VIEWS = \[(.*?)\]", (ROOT / "web/src/selection.ts").read_text(), re.S)
    assert listed is not None
    assert set(re.findall(r'"(\w+)"', listed[1])) == set(widgets.VIEWS) - {"histogram"}
