"""The list of runs, and a run without a step, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from layerscope.model.records import Metric
from layerscope.server.serve import PageServer
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.browser.conftest import Visit
from tests.server.runs import write_run

pytestmark = pytest.mark.browser
CUT = """(list) => [...list.children].some((row) => {
    const [own, box] = [row.getBoundingClientRect(), list.getBoundingClientRect()];
    return own.top < box.top - 0.5 && own.bottom > box.top + 0.5;
})"""


@pytest.mark.parametrize("view", ["charts", "heatmap", "findings", "compare", "compare&comparing=difference"])
def test_a_run_that_ended_before_its_first_step_says_so(visit: Visit, tmp_path: Path, view: str) -> None:
    FolderSink(create(tmp_path / "none")).close()
    write_run(tmp_path / "some")
    with PageServer(tmp_path, port=0) as server:
        visit.page.goto(f"{server.address}#run=none&runs=some&view={view}")
        stage = visit.page.get_by_test_id("stage")
        expect(stage.get_by_text("Training ended before the first recorded step.")).to_be_visible()
        expect(visit.page.get_by_text("with the first recorded step")).to_be_hidden()


def test_runs_with_metrics_only_are_compared_by_them(visit: Visit, tmp_path: Path) -> None:
    for name in ("one", "two"):
        sink = FolderSink(create(tmp_path / name))
        for step in range(5):
            sink.put(Metric(step, "loss", 1.0 / (1 + step), float(step)))
        sink.close()
    with PageServer(tmp_path, port=0) as server:
        visit.page.goto(f"{server.address}#run=one&runs=two&view=compare")
        compared = visit.page.get_by_test_id("compare")
        expect(compared.get_by_role("img", name=re.compile("loss"))).to_be_visible()
        expect(compared.get_by_text("the run has no")).to_have_count(0)
        visit.page.get_by_role("button", name="Histograms").click()
        expect(compared.get_by_text("Metrics only")).to_be_visible()


def test_the_first_visible_row_is_whole(visit: Visit, tmp_path: Path) -> None:
    for at in range(12):
        write_run(tmp_path / f"run{at:02}", steps=1)
    with PageServer(tmp_path, port=0) as server:
        visit.page.goto(f"{server.address}#run=run07")
        runs = visit.page.get_by_test_id("runs")
        for name in ("run07", "run11"):
            row = runs.get_by_role("row").filter(has_text=name)
            expect(row).to_be_in_viewport(ratio=1)
            assert runs.evaluate("(list) => list.scrollTop") > 0
            assert not runs.evaluate(CUT)
            for _ in range(4):
                runs.press("ArrowDown")


def test_many_runs_are_filtered_by_name(visit: Visit, tmp_path: Path) -> None:
    for at in range(12):
        write_run(tmp_path / f"Run{at:02}", steps=1)
    with PageServer(tmp_path, port=0) as server:
        visit.page.goto(f"{server.address}#run=Run07")
        rows = visit.page.get_by_test_id("runs").get_by_role("row")
        expect(rows).to_have_count(12)
        sought = visit.page.get_by_role("searchbox", name="Filter the runs by name")
        sought.fill("run1")
        expect(rows).to_have_count(2)
        sought.press("Escape")
        expect(rows).to_have_count(12)
        sought.fill("nothing")
        expect(visit.page.get_by_text("no run matches")).to_be_visible()
