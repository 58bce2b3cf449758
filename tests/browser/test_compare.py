"""Several runs in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.browser.project import write_layers
from tests.server.runs import write_run

pytestmark = pytest.mark.browser


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    write_layers(tmp_path / "a")
    write_layers(tmp_path / "b", steps=50, scale=4.0)
    write_run(tmp_path / "other", steps=10)
    with PageServer(tmp_path, port=0) as server:
        yield server.address


def tick(page: Page, name: str) -> None:
    page.get_by_role("checkbox", name=f"Compare {name}", exact=True).click()


def test_runs_that_are_ticked_are_drawn_in_one_chart_with_the_values_of_all(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&view=compare&site=h.0.mlp&kind=output")
    expect(page.get_by_text("Choose runs to compare")).to_be_visible()
    tick(page, "b")
    page.get_by_test_id("runs").get_by_role("row").filter(has_text="other").click(modifiers=["Control"])
    expect(page).to_have_url(re.compile("run=a.*runs=b&runs=other"))
    view = page.get_by_test_id("compare")
    loss = view.get_by_role("figure").filter(has=page.get_by_role("heading", name="loss", exact=True))
    expect(loss.get_by_role("img", name="loss of 3 runs over the steps")).to_have_attribute("data-points", "90")
    tensor = view.get_by_role("figure").filter(has_text="rms of h.0.mlp · output")
    expect(tensor.get_by_role("listitem").filter(has_text="other")).to_contain_text("missing")
    loss.get_by_role("img").hover(position={"x": 70, "y": 40})
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 0")
    for name in ("a", "b", "other"):
        expect(loss.get_by_role("listitem").filter(has_text=re.compile(rf"^\s*{name}\b"))).to_contain_text("1")
    page.reload()
    expect(loss.get_by_role("img", name="loss of 3 runs over the steps")).to_be_visible()
    tick(page, "other")
    expect(loss.get_by_role("img", name="loss of 2 runs over the steps")).to_be_visible()


def test_the_difference_of_two_runs_is_of_what_both_have(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&runs=b&view=compare&comparing=difference&ratio=1")
    heat = page.get_by_test_id("heatmap")
    expect(heat).to_have_attribute("data-columns", "30")
    expect(page.get_by_test_id("in-common")).to_contain_text("30 common steps of 30 and 50")
    heat.hover(position={"x": 500, "y": 20})
    expect(page.get_by_test_id("heatmap-tip")).to_contain_text("rms × 0.25")
    page.get_by_role("button", name="a − b").click()
    heat.hover(position={"x": 502, "y": 20})
    expect(page.get_by_test_id("heatmap-tip")).to_contain_text("Δ rms −")
    expect(page.get_by_text(re.compile(r"\(log; below ±"))).to_be_visible()
    page.get_by_role("button", name="linear").click()
    expect(page.get_by_text(re.compile(r"\(log; below ±"))).to_be_hidden()


def test_runs_without_a_common_site_say_so(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&runs=other&view=compare&comparing=difference")
    expect(page.get_by_text("Nothing in common")).to_be_visible()


def test_the_same_site_of_two_runs_stands_on_one_axis(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&runs=b&runs=other&view=compare&comparing=histograms&site=head&kind=output&step=12")
    histograms = page.get_by_test_id("histograms")
    expect(histograms.get_by_role("img")).to_have_count(2)
    expect(histograms.get_by_role("figure").filter(has_text="step 12")).to_have_count(2)
    expect(histograms.get_by_role("figure").last).to_contain_text("the run has no output of 'head'")
    with page.expect_download() as table:
        histograms.get_by_role("figure").first.get_by_role("button", name="CSV").click()
    assert table.value.suggested_filename == "a_head_output_step_12.csv"
    rows = Path(table.value.path()).read_text().splitlines()
    assert rows[0] == "tensor,step,from,to,elements"
    assert sum(float(row.split(",")[4]) for row in rows[1:]) > 0
