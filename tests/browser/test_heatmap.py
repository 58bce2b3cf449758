"""The heat map in a real browser: what is wrong is seen at once, and one click leads to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import layerscope
from layerscope.model.records import Kind, Mode, Phase, Series
from layerscope.server.serve import PageServer
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.browser.conftest import Visit
from tests.browser.project import write_layers
from tests.server.runs import summaries

pytestmark = pytest.mark.browser
PIXEL = """([x, y]) => {
    const canvas = document.querySelector('[data-testid=heatmap] canvas');
    const [r, g, b, a] = canvas.getContext('2d').getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data;
    return a === 0 ? 'nothing' : `rgb(${r}, ${g}, ${b})`;
}"""
NAN = "rgb(255, 107, 74)"
CALLED = ("relu", "fc.a", "fc.b", "relu#2", "end", "relu#3")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    write_layers(tmp_path / "sound")
    write_layers(tmp_path / "broken", nan_at=20)
    with PageServer(tmp_path, port=0) as server:
        yield server.address


def write_backwards(folder: Path) -> None:
    """Outputs in the order of the calls, their gradients as backward gives them, weights as they were made."""
    kinds = [(site, "output.0", Kind.OUTPUT) for site in CALLED]
    kinds += [(site, "output.0", Kind.OUTPUT_GRAD) for site in CALLED[::-1]]
    kinds += [(f"{site}.weight", "weight", Kind.WEIGHT) for site in sorted(CALLED)]
    sink = FolderSink(create(folder))
    numbers = [sink.series_id(Series(*kind, Mode.TRAIN, Phase.FORWARD, "float64", (4,))) for kind in kinds]
    for step in range(3):
        sink.put(summaries(step, numbers, [np.ones(4) * (1 + at) for at in range(len(numbers))]))
    sink.close()


def middle(page: Page, site: str, step: float, steps: int = 30) -> tuple[float, float]:
    """The place of a cell, in pixels from the corner of the heat map."""
    plot = page.get_by_test_id("heatmap").bounding_box()
    label = page.get_by_test_id("heatmap").get_by_title(site, exact=True).bounding_box()
    assert plot is not None
    assert label is not None
    left, right = 210, plot["width"] - 54
    return left + (right - left) * (step + 0.5) / steps, label["y"] - plot["y"] + label["height"] / 2


def test_nan_has_its_own_color_from_the_step_on_and_a_click_opens_site_and_step(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=broken&view=heatmap")
    heat = page.get_by_test_id("heatmap")
    expect(heat).to_have_attribute("data-columns", "30")
    page.mouse.move(5, 5)
    assert page.evaluate(PIXEL, middle(page, "h.1.attn", 25)) == NAN
    assert page.evaluate(PIXEL, middle(page, "h.1.attn", 10)) not in (NAN, "nothing")
    assert page.evaluate(PIXEL, middle(page, "h.0.attn", 25)) not in (NAN, "nothing")
    x, y = middle(page, "h.1.attn", 20)
    heat.hover(position={"x": x, "y": y})
    tip = page.get_by_test_id("heatmap-tip")
    expect(tip).to_contain_text("h.1.attn")
    expect(tip).to_contain_text("has NaN @20")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 20")
    page.mouse.down()
    page.mouse.up()
    expect(page).to_have_url(re.compile("site=h.1.attn.*step=20"))
    page.get_by_role("button", name="Charts", exact=True).click()
    expect(page.get_by_test_id("site-title")).to_have_text("h.1.attn")
    expect(page.get_by_test_id("not-finite")).to_have_text("5 NaN, 0 Inf")


def test_rows_are_in_the_order_of_module_calls_for_every_kind(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    write_backwards(tmp_path / "run")
    with PageServer(tmp_path, port=0) as server:
        for kind, last in (("output", ""), ("output_grad", ""), ("weight", ".weight")):
            page.goto(f"{server.address}#run=run&view=heatmap&kind={kind}")
            expect(page.get_by_role("combobox", name="Kind")).to_have_value(kind)
            heat = page.get_by_test_id("heatmap")
            places = [heat.get_by_title(f"{site}{last}", exact=True).bounding_box() for site in CALLED]
            heights = [place["y"] for place in places if place is not None]
            assert len(heights) == len(CALLED)
            assert heights == sorted(heights)


def test_a_stride_of_steps_thins_out_heat_map_and_charts_and_keys_walk_along_it(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=sound&view=heatmap")
    heat = page.get_by_test_id("heatmap")
    expect(heat).to_have_attribute("data-columns", "30")
    page.get_by_role("combobox", name="Stride of steps").select_option("10 steps")
    expect(heat).to_have_attribute("data-columns", "3")
    page.get_by_role("slider", name="Step of the crosshair").press("ArrowLeft")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 20")
    page.get_by_role("slider", name="Step of the crosshair").press("ArrowLeft")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 10")
    page.get_by_role("tab", name="Charts").click()
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "3")
    page.reload()
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "3")
    page.get_by_role("combobox", name="Stride of steps").select_option("step")
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "30")


def test_groups_fold_into_one_row_that_keeps_the_nan_and_the_search_filters_rows(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=broken&view=heatmap")
    heat = page.get_by_test_id("heatmap")
    expect(heat).to_have_attribute("data-rows", "9")
    heat.get_by_title("h", exact=True).click()
    expect(heat).to_have_attribute("data-rows", "3")
    page.mouse.move(5, 5)
    assert page.evaluate(PIXEL, middle(page, "h (6 rows)", 25)) == NAN
    page.get_by_role("searchbox").fill("mlp")
    expect(heat).to_have_attribute("data-rows", "2")
    page.get_by_role("button", name="rows with").click()
    expect(heat).to_have_attribute("data-rows", "3")
    page.get_by_role("combobox", name="Levels of the tree that are unfolded").select_option("2 levels")
    expect(heat).to_have_attribute("data-rows", "5")


def test_a_heat_map_requests_no_chart_and_the_way_back_requests_each_once(visit: Visit, address: str) -> None:
    page, asked = visit.page, set[str]()
    page.goto(f"{address}#run=broken")
    expect(page.get_by_test_id("histogram")).to_be_visible()
    page.on("request", lambda request: asked.add(request.url.partition("/api/run/broken/")[2]))
    page.get_by_role("tab", name="Heat map").click()
    expect(page.get_by_test_id("heatmap")).to_be_visible()
    page.get_by_test_id("sites").get_by_role("treeitem").last.click()
    assert not [each for each in asked if each.startswith(("histogram?", "scalar?"))]
    page.get_by_role("tab", name="Charts").click()
    expect(page.get_by_test_id("histogram")).to_be_visible()
    # With news of the run the same is asked for again, but nothing for a room that was known only later.
    assert [sum(each.startswith(name) for each in asked) for name in ("histogram?", "scalar?")] == [1, 1]


def test_the_keyboard_moves_the_cell_and_opens_it(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=broken&view=heatmap&site=h.0.mlp&step=19")
    expect(page.get_by_test_id("heatmap")).to_have_attribute("data-columns", "30")
    page.get_by_test_id("heatmap").get_by_role("tree").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 20")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile("site=h.1.attn"))
    expect(page.get_by_test_id("heatmap-readout")).to_have_text("has NaN @20 · h.1.attn")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("site-title")).to_have_text("h.1.attn")


def test_the_heat_map_shares_its_steps_with_the_metrics_and_zooms_with_them(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=sound&view=heatmap")
    heat = page.get_by_test_id("heatmap")
    expect(heat).to_have_attribute("data-columns", "30")
    metric = page.get_by_role("img", name="loss over the steps").bounding_box()
    plot = heat.bounding_box()
    assert metric is not None
    assert plot is not None
    assert (metric["x"], metric["width"]) == (plot["x"], plot["width"])
    heat.hover(position={"x": 400, "y": 40})
    page.mouse.down()
    heat.hover(position={"x": 600, "y": 40})
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"first=\d+&last=\d+"))
    first, last = (int(step) for step in re.findall(r"(?:first|last)=(\d+)", page.url))
    expect(heat).to_have_attribute("data-columns", str(last - first + 1))


def test_the_numbers_and_the_picture_can_be_exported(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=broken&view=heatmap")
    expect(page.get_by_test_id("heatmap")).to_have_attribute("data-columns", "30")
    view = page.get_by_role("region", name="Heat map")
    with page.expect_download() as table:
        view.get_by_role("button", name="CSV").click()
    lines = table.value.path().read_text().splitlines()
    assert lines[0].split(",")[:3] == ["site", "port", "0"]
    assert len(lines) == 7
    assert lines[4].split(",")[22:24] == ["NaN", "NaN"]
    with page.expect_download() as picture:
        view.get_by_role("button", name="PNG").click()
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")
    assert picture.value.suggested_filename == "broken_output_rms.png"


def test_a_metric_without_a_value_at_the_crosshair_shows_its_last_value_with_its_step(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    write_layers(tmp_path / "run")
    layerscope.open(tmp_path / "run").add_curves({"step": [0, 10, 20], "sparse": [3.0, 2.0, 1.0]})
    with PageServer(tmp_path, port=0) as server:
        for step, label in (("12", "sparse 2 @10"), ("19", "sparse 2 @10"), ("20", "sparse 1"), (None, "sparse 1 @20")):
            page.goto("about:blank")
            page.goto(f"{server.address}#run=run&view=heatmap{'' if step is None else f'&step={step}'}")
            expect(page.get_by_role("button", name="sparse")).to_have_text(re.compile(label.replace(" ", r"\s*") + "$"))
