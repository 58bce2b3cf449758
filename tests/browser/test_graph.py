"""Journeys through the graph view: real browser, real server."""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import FloatRect, Locator, Page, Route, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.server.graphs import blocks_graph, write_graph_run
from tests.views.test_module_graph import flat

pytestmark = pytest.mark.browser


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    write_graph_run(tmp_path / "runs" / "blocks", blocks_graph())
    with PageServer(tmp_path / "runs", port=0) as server:
        yield f"{server.address}#run=blocks&view=graph"


def graph(page: Page) -> Locator:
    return page.get_by_test_id("graph")


def part(page: Page, name: str) -> Locator:
    """The row of the tree that mirrors a part of the picture."""
    return graph(page).locator(f'[role=treeitem][data-key="{name}"]')


def point(page: Page, name: str) -> tuple[float, float]:
    """Where a part is drawn, in pixels of the window."""
    box = graph(page).bounding_box()
    assert box is not None
    where = [float(part(page, name).get_attribute(f"data-{axis}") or "nan") for axis in "xy"]
    return box["x"] + where[0], box["y"] + where[1]


def box_of(of: Locator) -> FloatRect:
    box = of.bounding_box()
    assert box is not None
    return box


def drag_into_panels(page: Page, name: str) -> None:
    page.mouse.move(*point(page, name))
    page.mouse.down()
    column = box_of(page.get_by_test_id("panels"))
    page.mouse.move(column["x"] + 40, column["y"] + 200, steps=5)
    page.mouse.up()


def branches_below(page: Page, name: str) -> Locator:
    """The panel of the merge below a part, which is clicked."""
    x, y = point(page, name)
    scale = float(graph(page).get_attribute("data-scale") or 1)
    branches = page.get_by_test_id("branches")
    for below in range(30, 70, 4):
        page.mouse.click(x, y + below * scale)
        with contextlib.suppress(PlaywrightTimeoutError):  # the click missed the small mark, or the page is still busy
            branches.wait_for(timeout=700)
            break
    return branches


def ready(page: Page) -> None:
    expect(part(page, "embed")).to_have_count(1)
    expect(page.get_by_test_id("graph-legend")).to_be_visible()


@pytest.mark.feature("E3")
def test_repeated_blocks_are_folded_opened_in_place_and_entered_and_the_address_restores_it(
    visit: Visit, address: str
) -> None:
    page = visit.page
    page.goto(address)
    ready(page)
    folded = part(page, "repeat:blocks.0")
    expect(folded).to_contain_text("blocks.0 … blocks.3 ×4 Block")
    expect(folded).to_have_attribute("aria-expanded", "false")
    page.mouse.dblclick(*point(page, "repeat:blocks.0"))
    expect(folded).to_have_attribute("aria-expanded", "true")
    expect(part(page, "blocks.3")).to_contain_text("Block · 8×16")
    page.mouse.dblclick(*point(page, "blocks.1"))
    expect(part(page, "blocks.1.norm")).to_have_count(1)
    part_at = point(page, "blocks.1.norm")
    page.mouse.click(*part_at)
    expect(page).to_have_url(re.compile("site=blocks.1.norm"))
    page.mouse.dblclick(part_at[0], part_at[1] - 60)  # the title of the open block
    crumbs = page.get_by_role("navigation", name="Entered modules").get_by_role("button")
    expect(crumbs).to_have_text(["Network", "blocks.0 … blocks.3", "blocks.1"])
    expect(part(page, "embed")).to_have_count(0)
    page.reload()
    expect(crumbs).to_have_text(["Network", "blocks.0 … blocks.3", "blocks.1"])
    expect(part(page, "blocks.1.mlp")).to_have_count(1)
    crumbs.first.click()
    expect(part(page, "embed")).to_have_count(1)
    expect(part(page, "blocks.1.mlp")).to_have_count(1)


@pytest.mark.feature("E4")
def test_the_graph_opens_at_the_site_of_the_address_whichever_answer_comes_first(visit: Visit, address: str) -> None:
    page, held = visit.page, list[Route]()
    page.route(re.compile("/sites$"), lambda route: held.append(route))
    with page.expect_response(re.compile("/graph$")):
        page.goto(f"{address}&site=blocks.1.mlp")
    expect(part(page, "embed")).to_have_count(1)
    for route in held:
        route.continue_()
    expect(part(page, "blocks.1.mlp")).to_have_count(1)


def test_a_click_opens_the_panel_with_value_and_gradient_and_dragging_a_node_pins_it(
    visit: Visit, address: str
) -> None:
    page = visit.page
    page.goto(address)
    ready(page)
    page.mouse.click(*point(page, "head"))
    panels = page.get_by_test_id("site-panel")
    expect(panels).to_have_attribute("data-site", "head")
    expect(panels.get_by_role("img", name="Histogram of output of head")).to_be_visible()
    expect(panels.get_by_role("img", name="Histogram of output_grad of head")).to_be_visible()
    panels.get_by_role("combobox", name="Tensor").select_option(label="weight")
    expect(panels.get_by_role("img", name="Histogram of weight of head.weight")).to_be_visible()
    drag_into_panels(page, "embed")
    expect(page.get_by_role("region", name="Panel of embed")).to_be_visible()
    expect(page.get_by_role("region", name="Panel of head")).to_be_visible()
    page.reload()
    expect(page.get_by_role("region", name="Panel of embed")).to_be_visible()
    page.get_by_role("button", name="Close the panel of embed").click()
    expect(page.get_by_role("region", name="Panel of embed")).to_have_count(0)


@pytest.mark.parametrize("name", ["he#ad", "head#2"])
def test_a_module_with_the_mark_of_calls_in_its_name_keeps_its_class_and_its_weights(
    visit: Visit, tmp_path: Path, name: str
) -> None:
    page = visit.page
    write_graph_run(tmp_path / "runs" / "odd", blocks_graph(name=name))
    with PageServer(tmp_path / "runs", port=0) as server:
        page.goto(f"{server.address}#run=odd&view=graph")
        ready(page)
        expect(part(page, name)).to_contain_text("Linear")
        page.mouse.click(*point(page, name))
        tensor = page.get_by_role("region", name=f"Panel of {name}").get_by_role("combobox", name="Tensor")
        tensor.select_option(label="weight")
        expect(page.get_by_role("img", name=f"Histogram of weight of {name}.weight")).to_be_visible()


def test_the_panels_have_the_choices_of_the_charts_and_smooth_their_lines(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&site=head")
    ready(page)
    panels = page.get_by_test_id("panels")
    tools = panels.get_by_role("group", name="Charts of the panels")
    over_time = panels.get_by_role("img", name="Histogram of output of head over the steps")
    expect(over_time).to_be_visible()
    with page.expect_request(lambda request: "/histogram?" in request.url and "axis=symlog" in request.url):
        tools.get_by_role("button", name="symlog").click()
    slider = tools.get_by_role("slider", name="Smoothing in percent")
    with page.expect_request(lambda request: "/scalar?" in request.url and "smooth=0.6" in request.url):
        slider.fill("60")
    tools.get_by_role("checkbox", name="log axis").check()
    tools.get_by_role("button", name="one step").click()
    expect(panels.get_by_test_id("histograms")).to_have_count(2)
    expect(over_time).to_have_count(0)
    for said in ("oneStep=1", "log=1", "smooth=60", "axis=symlog"):
        expect(page).to_have_url(re.compile(said))


def test_the_panel_shows_the_bin_under_the_pointer(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&site=embed")
    ready(page)
    plot = page.get_by_test_id("panels").get_by_role("img", name="Histogram of output of embed over the steps")
    room = box_of(plot)
    for x in (70, 160, 270):
        plot.hover(position={"x": x, "y": 40})
        tip = plot.get_by_test_id("bin-tip")
        expect(tip).to_have_text(re.compile(r"\S+ … \S+\s+(\d+ of 200|empty)"))
        box = box_of(tip)
        assert room["x"] <= box["x"]
        assert box["x"] + box["width"] < room["x"] + room["width"] + 1


def test_pinning_a_folded_node_pins_what_a_click_on_it_selects(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(address)
    ready(page)
    drag_into_panels(page, "repeat:blocks.0")
    expect(page.get_by_role("button", name="Close the panel of blocks.0")).to_be_visible()
    expect(page).to_have_url(re.compile("pins=blocks.0"))


@pytest.mark.parametrize(("width", "columns"), [(1280, 1), (1920, 2)])
def test_panels_stand_side_by_side_where_there_is_room(visit: Visit, address: str, width: int, columns: int) -> None:
    page = visit.page
    page.set_viewport_size({"width": width, "height": 1080})
    page.goto(f"{address}&site=embed&pins=head+blocks.1+blocks.2")
    ready(page)
    panels = page.get_by_test_id("site-panel")
    expect(panels).to_have_count(4)
    assert len({box_of(panel)["x"] for panel in panels.all()}) == columns
    assert all(box_of(panel)["width"] >= 320 for panel in panels.all())
    assert box_of(graph(page))["width"] >= 640
    page.mouse.click(*point(page, "head"))  # kept already: nothing moves
    expect(panels).to_have_count(3)
    assert len({box_of(panel)["x"] for panel in panels.all()}) == columns


def test_the_tools_stay_visible_beside_a_long_path(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&entered=blocks.1.norm&expanded=(model)+repeat%253Ablocks.0+blocks.1+blocks.1.norm")
    crumbs = page.get_by_role("navigation", name="Entered modules").get_by_role("button")
    expect(crumbs).to_have_count(4)
    zoom = page.get_by_role("group", name="Zoom")
    keep = page.get_by_role("group", name="Download").nth(1)  # after that of the metrics
    names = [*crumbs.all(), *zoom.get_by_role("button").all(), *keep.get_by_role("button").all()]
    boxes = [box_of(each) for each in names]
    for before, after in itertools.pairwise(boxes):
        assert before["x"] + before["width"] <= after["x"] + 1
    whole = crumbs.last.evaluate("(crumb) => crumb.scrollWidth <= crumb.clientWidth")
    assert whole


def test_the_tooltip_stays_inside_the_picture(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(address)
    ready(page)
    room, tip = box_of(graph(page)), page.get_by_test_id("graph-tip")
    x, y = point(page, "head")
    # Have the box at the right edge, where little is left of the picture.
    page.mouse.move(room["x"] + 30, y)
    page.mouse.down()
    page.mouse.move(room["x"] + 30 + room["x"] + room["width"] - 40 - x, y, steps=4)
    page.mouse.up()
    page.mouse.move(*point(page, "head"))
    expect(tip).to_be_visible()
    box = box_of(tip)
    assert box["width"] > 200
    assert room["x"] <= box["x"]
    assert box["x"] + box["width"] <= room["x"] + room["width"]
    assert box["y"] + box["height"] <= room["y"] + room["height"]


def test_the_mark_of_a_finding_does_not_cover_the_number_of_repeats(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    write_graph_run(tmp_path / "runs" / "five", blocks_graph(blocks=5))  # the last block holds NaN
    with PageServer(tmp_path / "runs", port=0) as server:
        page.goto(f"{server.address}#run=five&view=graph")
        ready(page)
        expect(graph(page).locator("i").first).to_be_attached()  # the ring around what a finding is about
        with page.expect_download() as download:
            page.get_by_role("group", name="Download").nth(1).get_by_role("button", name="SVG").click()
        page.set_content(download.value.path().read_text())
    marks = page.locator("path").evaluate_all(
        "(all) => all.filter((path) => /^M[^A-Z]+L[^A-Z]+L[^A-Z]+Z$/.test(path.getAttribute('d')))"
        ".map((path) => path.getBoundingClientRect().toJSON())"
    )
    words = box_of(page.get_by_text("×5"))
    beside = [mark for mark in marks if abs(mark["right"] - words["x"] - words["width"]) < 20]
    assert any(abs(mark["bottom"] - words["y"]) < 20 for mark in beside)
    assert all(mark["bottom"] <= words["y"] or mark["top"] >= words["y"] + words["height"] for mark in beside)


def test_the_keyboard_walks_opens_enters_and_leaves(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(address)
    ready(page)
    graph(page).focus()
    chosen = graph(page).locator("[role=treeitem][aria-selected=true]")
    page.mouse.click(*point(page, "embed"))
    expect(chosen).to_have_attribute("data-key", "embed")
    page.keyboard.press("ArrowDown")
    expect(chosen).to_have_attribute("data-key", "repeat:blocks.0")
    page.keyboard.press("Enter")
    expect(chosen).to_have_attribute("data-key", "blocks.0")
    page.keyboard.press("ArrowDown")
    expect(chosen).to_have_attribute("data-key", "blocks.1")
    page.keyboard.press("ArrowUp")
    expect(chosen).to_have_attribute("data-key", "blocks.0")
    page.keyboard.press("Enter")
    expect(part(page, "blocks.0.norm")).to_have_count(1)
    page.keyboard.press("Enter")
    crumbs = page.get_by_role("navigation", name="Entered modules").get_by_role("button")
    expect(crumbs.last).to_have_text("blocks.0")
    page.keyboard.press("Backspace")
    expect(crumbs.last).to_have_text("blocks.0 … blocks.3")


def test_the_search_of_the_sites_finds_a_node_in_a_folded_group(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(address)
    ready(page)
    expect(part(page, "blocks.2.mlp")).to_have_count(0)
    page.get_by_role("searchbox").fill("2.mlp")
    page.keyboard.press("Enter")
    expect(part(page, "blocks.2.mlp")).to_have_attribute("aria-selected", "true")
    where, box = point(page, "blocks.2.mlp"), graph(page).bounding_box()
    assert box is not None
    assert box["x"] < where[0] < box["x"] + box["width"]
    assert box["y"] < where[1] < box["y"] + box["height"]


def test_the_colors_follow_the_step_and_the_tooltip_separates_key_and_value(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&step=2")
    ready(page)
    legend = page.get_by_test_id("graph-legend")
    expect(legend).to_contain_text("output rms @2")
    expect(legend).to_contain_text("NaN")
    page.mouse.move(*point(page, "embed"))
    tip = page.get_by_test_id("graph-tip")
    keys = ["name", "class", "input.0", "output.0", "parameters", "in_features", "bias", "output rms"]
    expect(tip.locator("dt")).to_have_text(keys)
    before = tip.locator("dd").last.inner_text()
    assert tip.locator("dd").all_inner_texts()[:5] == ["embed", "Linear", "8×16", "8×16", "144"]
    page.keyboard.press("]")
    expect(legend).to_contain_text("output rms @3")
    expect(tip.locator("dd").last).not_to_have_text(before)
    page.get_by_role("combobox", name="Kind that colors the graph").select_option("output_grad")
    expect(legend).to_contain_text("output_grad rms @3")


def color_of(page: Page, name: str) -> list[int]:
    """The color of a box, in its upper left corner, clear of words and rings."""
    x, y = (float(part(page, name).get_attribute(f"data-{axis}") or "nan") for axis in "xy")
    scale = float(graph(page).get_attribute("data-scale") or 1)
    found: list[int] = (
        graph(page)
        .locator("canvas")
        .first.evaluate(
            "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData("
            "x * devicePixelRatio, y * devicePixelRatio, 1, 1).data.slice(0, 3)]",
            [x - 36 * scale, y - 12 * scale],
        )
    )
    return found


def test_an_explosion_changes_the_color_on_the_scale_of_the_whole_run(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    write_graph_run(tmp_path / "runs" / "grows", blocks_graph(), growth=100.0)
    with PageServer(tmp_path / "runs", port=0) as server:
        page.goto(f"{server.address}#run=grows&view=graph&step=0")
        ready(page)
        legend = page.get_by_test_id("graph-legend")
        expect(legend).to_contain_text("@0")
        scale = legend.inner_text().split("@0")[1]
        seen = [color_of(page, "embed")]
        for step in range(1, 6):
            page.keyboard.press("]")
            expect(legend).to_contain_text(f"@{step}")
            page.wait_for_function(
                "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            assert legend.inner_text().split(f"@{step}")[1] == scale
            seen.append(color_of(page, "embed"))
        assert all(sum(after) > sum(before) for before, after in itertools.pairwise(seen))
        legend.get_by_role("button", name="linear").click()
        expect(page).to_have_url(re.compile("heatLinear"))
        expect(legend).not_to_contain_text(scale.split()[1])


def test_the_legend_explains_the_mark_of_findings_which_is_not_the_color_of_nan(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    write_graph_run(tmp_path / "runs" / "five", blocks_graph(blocks=5))  # the last block holds NaN
    with PageServer(tmp_path / "runs", port=0) as server:
        page.goto(f"{server.address}#run=five&view=graph")
        legend = page.get_by_test_id("graph-legend")
        expect(legend.get_by_text("finding", exact=True)).to_be_visible()
        nan, finding = (
            legend.locator(which).evaluate("(mark) => getComputedStyle(mark).backgroundColor")
            for which in ("i:nth-of-type(2)", "i.finding")
        )
        assert nan != finding
        page.get_by_role("combobox", name="Kind that colors the graph").select_option("none")
        expect(legend).to_have_text("finding")


def test_where_a_skip_connection_meets_its_branch_both_are_on_one_axis(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&expanded=(model)+repeat%253Ablocks.0+blocks.0&entered=blocks.0")
    expect(part(page, "blocks.0.mlp")).to_have_count(1)
    branches = branches_below(page, "blocks.0.mlp")
    expect(branches).to_contain_text("2 branches meet here")
    expect(branches.get_by_role("listitem")).to_contain_text(["input (embed)", "mlp", "mlp"])


def test_a_sum_and_a_product_of_the_same_calls_are_two_circles(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    meeting = flat("in>a in>b a>c@sum b>c@sum a>d@product b>d@product a>e@sum b>e@sum", "abcde")
    write_graph_run(tmp_path / "runs" / "two", meeting)
    with PageServer(tmp_path / "runs", port=0) as server:
        page.goto(f"{server.address}#run=two&view=graph")
        circles = graph(page).get_by_text("where branches meet")
        expect(circles).to_have_count(2)
        places = set(
            zip(*(circles.evaluate_all(f"(all) => all.map((e) => e.dataset.{axis})") for axis in "xy"), strict=True)
        )
        assert len(places) == 2


def test_branches_use_the_selected_axis_and_can_be_exported(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&site=embed&expanded=(model)+repeat%253Ablocks.0+blocks.0&entered=blocks.0")
    expect(part(page, "blocks.0.mlp")).to_have_count(1)
    branches = branches_below(page, "blocks.0.mlp")
    heads = branches.get_by_role("heading", level=4)
    expect(heads).to_contain_text(["values: rms", "gradients: rms"])
    expect(branches).not_to_contain_text("log axis")
    page.get_by_test_id("panels").get_by_role("checkbox", name="log axis").check()
    expect(heads).to_contain_text(["values: rms, log axis", "gradients: rms, log axis"])
    lower = branches.get_by_role("img", name="gradients of the branches over the steps")
    expect(lower).not_to_have_attribute("style", re.compile("--labels"))
    with page.expect_download() as download:
        heads.first.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert {row["curve"] for row in rows} == {"input (embed)", "mlp"}
    assert len(rows) == 12


def test_a_selected_merge_is_in_the_address_until_a_site_is_selected(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&site=embed&expanded=(model)+repeat%253Ablocks.0+blocks.0&entered=blocks.0")
    expect(part(page, "blocks.0.mlp")).to_have_count(1)
    branches = branches_below(page, "blocks.0.mlp")
    page.reload()
    expect(branches).to_contain_text("2 branches meet here")
    page.mouse.click(*point(page, "blocks.0.mlp"))
    expect(branches).to_have_count(0)
    expect(page).not_to_have_url(re.compile("merge="))
    page.go_back()
    expect(branches).to_be_visible()
    page.get_by_role("tree", name="Sites").get_by_role("treeitem", name=re.compile("^embed")).click()
    expect(page.get_by_role("region", name="Panel of embed")).to_be_visible()


def test_an_older_run_shows_nested_modules_and_says_why_it_has_no_arrows(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    write_graph_run(tmp_path / "runs" / "old", blocks_graph(calls=False))
    with PageServer(tmp_path / "runs", port=0) as server:
        page.goto(f"{server.address}#run=old&view=graph")
        note = page.get_by_role("note")
        expect(note).to_contain_text("no call of a module was seen")
        page.set_viewport_size({"width": 1000, "height": 800})
        assert note.evaluate("(note) => note.scrollWidth <= note.clientWidth")
        expect(part(page, "embed")).to_have_count(1)


def test_a_name_with_html_is_drawn_as_text_and_a_run_without_modules_says_so(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    name = "<img src=x onerror=document.title='hit'>" + "é" * 300
    write_graph_run(tmp_path / "runs" / "odd", blocks_graph(name=name))
    with PageServer(tmp_path / "runs", port=0) as server:
        page.goto(f"{server.address}#run=odd&view=graph")
        expect(graph(page).get_by_role("treeitem").filter(has_text="<img src=x")).to_have_count(1)
        assert page.locator("img").count() == 0
        assert "hit" not in page.title()
