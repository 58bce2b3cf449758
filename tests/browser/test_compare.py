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
from tests.browser.test_axes import labels
from tests.browser.test_downloads import kept
from tests.server.runs import write_run

pytestmark = pytest.mark.browser
HIGHEST = """(canvas) => {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    for (let at = 0; at < data.length; at += 4) {
        const [red, , blue, alpha] = data.subarray(at, at + 4);
        if (alpha > 150 && Math.abs(red - blue) > 100) return 1 - Math.floor(at / 4 / width) / height;
    }
}"""


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
    expect(page.get_by_test_id("in-common")).to_contain_text("30 steps in common, of 30 and 50")
    heat.hover(position={"x": 500, "y": 20})
    expect(page.get_by_test_id("heatmap-tip")).to_contain_text("rms × 0.25")
    page.get_by_role("button", name="a − b").click()
    heat.hover(position={"x": 502, "y": 20})
    expect(page.get_by_test_id("heatmap-tip")).to_contain_text("Δ rms −")
    expect(page.get_by_text(re.compile(r"\(log; below ±"))).to_be_visible()
    page.get_by_role("button", name="linear").click()
    expect(page.get_by_text(re.compile(r"\(log; below ±"))).to_be_hidden()


def test_a_double_click_in_the_difference_shows_both_runs(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&runs=b&view=compare&comparing=difference")
    heat = page.get_by_test_id("heatmap")
    heat.hover(position={"x": 500, "y": 20})
    expect(page.get_by_test_id("heatmap-tip")).to_contain_text("double-click: its histograms in both runs at this step")
    heat.dblclick(position={"x": 500, "y": 20})
    histograms = page.get_by_test_id("histograms")
    expect(page).to_have_url(re.compile("site=embed.*step=[0-9]+"))
    step = re.search("step=([0-9]+)", page.url)
    assert step is not None
    expect(histograms.get_by_role("figure").filter(has_text=f"@{step[1]}")).to_have_count(2)
    page.go_back()
    page.get_by_role("button", name="Difference").click()
    heat.get_by_role("tree").press("Enter")
    expect(histograms.get_by_role("img")).to_have_count(2)


def test_runs_without_a_common_site_say_so(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&runs=other&view=compare&comparing=difference")
    expect(page.get_by_text("Nothing in common")).to_be_visible()


def test_the_same_site_of_two_runs_stands_on_one_axis(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(
        f"{address}#run=a&runs=b&runs=other&view=compare&comparing=histograms&site=head&kind=output&step=12&oneStep=1"
    )
    histograms = page.get_by_test_id("histograms")
    expect(histograms.get_by_role("img")).to_have_count(2)
    expect(histograms.get_by_role("figure").filter(has_text="@12")).to_have_count(2)
    expect(histograms.get_by_role("figure").last).to_contain_text("the run has no output of 'head'")
    with page.expect_download() as table:
        histograms.get_by_role("figure").first.get_by_role("button", name="CSV").click()
    assert table.value.suggested_filename == "a_head_output_step_12.csv"
    rows = Path(table.value.path()).read_text().splitlines()
    assert rows[0] == "tensor,step,from,to,elements"
    assert sum(float(row.split(",")[4]) for row in rows[1:]) > 0


def test_heights_of_two_runs_can_be_compared(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&runs=b&view=compare&comparing=histograms&site=head&kind=output&oneStep=1")
    canvases = page.get_by_test_id("histograms").locator("canvas")
    expect(canvases).to_have_count(2)
    narrow, wide = (canvases.nth(at).evaluate(HIGHEST) for at in range(2))
    assert narrow > 0.85
    assert wide < 0.7


def test_histograms_over_time_of_two_runs_share_their_axes(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&runs=b&runs=other&view=compare&comparing=histograms&site=head&kind=output")
    figures = page.get_by_test_id("over-time").get_by_role("figure")
    expect(figures).to_have_count(3)
    expect(figures.last).to_contain_text("the run has no output of 'head'")
    drawn = [labels(kept(page, figures.nth(at).get_by_role("button", name="SVG"))[1]) for at in range(2)]
    numbers = [[text for text in texts if re.fullmatch("[−0-9]+", text)] for texts in drawn]
    assert numbers[0] == numbers[1]
    assert "40" in numbers[0]  # a step of the longer one
    figures.first.get_by_role("img", name="Histogram of a over the steps").hover(position={"x": 70, "y": 60})
    expect(page.get_by_test_id("bin-tip")).to_be_visible()
    for at in range(2):
        expect(figures.nth(at)).to_contain_text("@0")
    page.get_by_role("button", name="one step").click()
    expect(page.get_by_test_id("histograms").get_by_role("img")).to_have_count(2)
