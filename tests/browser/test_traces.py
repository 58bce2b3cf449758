"""The trace view: from the graph to an operation, its values and its code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.browser.tracing import ODD, save_trace, traced, watch_and_trace
from tests.server.runs import Writing, write_run

pytestmark = pytest.mark.browser
BLOCKS = r"^\s*blocks\s+Sequential"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("runs")
    save_trace(folder / "net")
    write_run(folder / "untraced", steps=3)
    watch_and_trace(folder / "watched", 2)
    watch_and_trace(folder / "twice", 1, 2)
    watch_and_trace(folder / "mixed", 0, 1)
    traced().save(folder / "mixed", step=2)
    traced().save(folder / "mixed")
    with PageServer(folder, port=0) as server:
        yield server.address


def part(page: Page, words: str) -> Locator:
    return page.get_by_role("treeitem").filter(has_text=re.compile(words)).first


def click(page: Page, words: str, times: int = 1) -> None:
    """Click a part of the graph where it is drawn."""
    found = part(page, words)
    expect(found).to_be_attached()
    x, y = (float(found.get_attribute(f"data-{axis}") or "nan") for axis in "xy")
    graph = page.get_by_test_id("graph")
    (graph.dblclick if times == 2 else graph.click)(position={"x": x, "y": y})


def search(page: Page, words: str) -> None:
    page.get_by_role("combobox", name="Search operations").fill(words)
    page.get_by_role("listbox", name="Operations found").get_by_role("option").first.click()


def test_an_operation_is_found_and_shows_value_gradient_and_code(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces")
    search(page, "conv2d blocks.1")
    expect(page.get_by_test_id("op-label")).to_have_text(re.compile("conv2d_3"))
    value = page.get_by_test_id("picture-value")
    expect(value).to_have_attribute("data-picture", "grid")
    expect(page.get_by_test_id("picture-gradient")).to_be_visible()
    value.hover(position={"x": 3, "y": 3})
    expect(page.get_by_test_id("readout-value")).to_have_text(re.compile(r"\[0, 0, 0, 0\] (NaN|−?[\d.e−]+)"))
    value.click(position={"x": 3, "y": 3})
    expect(page.get_by_test_id("picture-value")).to_have_attribute("data-picture", "matrix")
    page.get_by_label("sample").fill("1")
    page.get_by_test_id("picture-value").hover(position={"x": 3, "y": 3})
    expect(page.get_by_test_id("readout-value")).to_have_text(re.compile(r"\[1, 0, 0, 0\]"))
    page.get_by_role("button", name=re.compile("groupnorm")).click()
    expect(page.get_by_test_id("code").filter(visible=True).first).to_contain_text("the residual")


def test_without_a_selection_the_overview_links_to_the_most_expensive_operations(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces")
    overview = page.get_by_test_id("trace-overview")
    expect(overview).to_contain_text("Parameters")
    overview.get_by_role("button", name="FLOPs", exact=True).click()
    first = overview.get_by_role("listitem").first
    expect(first).to_contain_text("conv2d")
    label = first.locator("b").text_content() or "none"
    first.get_by_role("button").click()
    expect(page.get_by_test_id("op-label")).to_have_text(label)
    expect(overview).to_have_count(0)


def test_the_address_restores_trace_operation_and_what_is_open(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces")
    search(page, "tanh")
    expect(page.get_by_test_id("op-label")).to_have_text("tanh_1_12:1")
    page.get_by_role("button", name="tanh_1_12:3").click()
    expect(page.get_by_test_id("op-label")).to_have_text("tanh_1_12:3")
    page.get_by_role("button", name="Fit").click()
    click(page, BLOCKS)
    page.get_by_role("button", name="Close").click()
    expect(part(page, "conv2d_2")).to_have_count(0)
    before = page.url
    search(page, "linear_1 cell")
    page.go_back()
    expect(page).to_have_url(before)
    page.reload()
    expect(part(page, BLOCKS)).to_have_attribute("aria-expanded", "false")
    expect(part(page, "conv2d_2")).to_have_count(0)


def test_a_module_opens_on_a_double_click_and_can_be_shown_alone(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces&opened=0")
    expect(part(page, BLOCKS)).to_have_attribute("aria-expanded", "false")
    click(page, BLOCKS, times=2)
    expect(part(page, BLOCKS)).to_have_attribute("aria-expanded", "true")
    click(page, r"^\s*1\s+Block")
    page.get_by_role("button", name="Show only this module").click()
    expect(part(page, "tanh")).to_have_count(0)
    crumbs = page.get_by_role("navigation", name="Module on screen")
    expect(crumbs).to_contain_text("blocks")
    crumbs.get_by_role("button", name="Net").click()
    expect(part(page, "tanh")).to_be_attached()


def test_every_pass_of_a_loop_can_be_a_node_and_nodes_be_colored(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces")
    tanh = page.get_by_role("treeitem").filter(has_text="tanh")
    expect(tanh).to_have_count(1)
    page.get_by_label("every pass").check()
    expect(tanh).to_have_count(3)
    page.get_by_label("Color of the nodes").select_option("time")
    expect(page.get_by_test_id("legend")).to_contain_text(re.compile("[µm]s"))


def test_not_a_number_is_named_and_an_image_shown(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces&op=0")
    expect(page.get_by_test_id("picture-value")).to_have_attribute("data-picture", "image")
    expect(page.get_by_label("Value", exact=True)).to_contain_text("NaN 1")


def test_the_keyboard_walks_the_graph_and_opens_modules(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces&opened=0&op=0")
    expect(page.get_by_test_id("op-label")).to_have_text("input_1_0")
    page.get_by_test_id("graph").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_test_id("op-label")).to_have_text("conv2d_1_1")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_test_id("block")).to_contain_text("blocks")
    page.keyboard.press("Enter")
    expect(part(page, BLOCKS)).to_have_attribute("aria-expanded", "true")


def test_names_of_modules_are_shown_as_text(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces")
    search(page, "linear head")
    expect(page.get_by_test_id("operation")).to_contain_text(ODD)
    assert page.locator("img").count() == 0
    assert "hit" not in page.title()


def test_a_run_without_traces_says_how_to_make_one(visit: Visit, address: str) -> None:
    visit.page.goto(f"{address}#run=untraced&view=traces")
    expect(visit.page.get_by_text("No traces in this run")).to_be_visible()
    expect(visit.page.get_by_text("ls.trace(model, x).save(run.path)")).to_be_visible()


def test_a_trace_leads_to_the_histograms_of_its_step_and_module(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=watched&view=traces&trace=000001&step=0")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 0")  # as the address says
    page.get_by_role("button", name="@2", exact=True).click()
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 2")
    search(page, "linear_2")
    page.get_by_role("button", name="histograms over training").click()
    expect(page.get_by_test_id("site-title")).to_have_text("2")
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "4")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 2")


def test_the_crosshair_stands_at_the_step_of_the_default_trace(visit: Visit, address: str) -> None:
    page = visit.page
    for said, stands in (("", "2"), ("&step=3", "3")):  # step 3 has no trace: the last one before it is shown
        page.goto(f"{address}#run=watched&view=traces{said}")
        expect(page.get_by_test_id("crosshair-step")).to_have_text(f"step {stands}")
        expect(page.get_by_role("slider", name="Step of the crosshair")).to_have_value(stands)
        expect(page.get_by_role("button", name="@2", exact=True)).to_be_visible()
        page.goto("about:blank")


def test_marks_above_the_metrics_lead_to_the_traces_of_their_steps(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=twice")
    marks = page.get_by_role("button", name=re.compile("Trace of step"))
    expect(marks).to_have_count(2)
    marks.first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Trace", exact=True)).to_have_value("000001")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 1")
    page.keyboard.press("]")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 2")
    expect(page.get_by_label("Trace", exact=True)).to_have_value("000002")
    page.go_back()
    expect(page.get_by_role("tab", name="Charts")).to_have_attribute("aria-selected", "true")


def test_a_trace_opened_by_the_crosshair_stays_open(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=twice&view=traces&trace=000001")
    step, trace = page.get_by_test_id("crosshair-step"), page.get_by_label("Trace", exact=True)
    expect(step).to_have_text("step 1")
    for now in (2, 3):
        page.keyboard.press("]")
        expect(step).to_have_text(f"step {now}")
        expect(trace).to_have_value("000002")
    page.goto("about:blank")
    page.goto(f"{address}#run=twice&view=traces&step=1")
    expect(trace).to_have_value("000001")
    page.keyboard.press("Escape")
    expect(step).to_have_count(0)
    expect(trace).to_have_value("000001")


def test_a_trace_of_another_model_begins_anew_and_one_of_the_same_goes_on(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=mixed&view=traces&trace=000001&op=1")
    trace, label = page.get_by_label("Trace", exact=True), page.get_by_test_id("op-label")
    expect(label).to_have_text(re.compile("linear_1"))
    page.keyboard.press("]")
    expect(trace).to_have_value("000002")
    expect(label).to_have_text(re.compile("linear_1"))
    page.keyboard.press("]")
    expect(trace).to_have_value("000003")
    expect(page.get_by_test_id("trace-overview")).to_be_visible()
    expect(page).not_to_have_url(re.compile("[&#]op="))


def test_moving_the_crosshair_leaves_a_trace_without_step(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=mixed&view=traces&trace=000003")
    trace = page.get_by_label("Trace", exact=True)
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 2")
    trace.select_option("000004")
    expect(trace).to_have_value("000004")
    expect(page).to_have_url(re.compile("trace=000004"))
    for now in ("000004", "000003"):  # the last step has none
        page.get_by_test_id("graph").press("]" if now == "000004" else "[")
        expect(trace).to_have_value(now)


def test_the_crosshair_reaches_the_trace_of_any_step_of_a_long_run(visit: Visit, tmp_path: Path) -> None:
    writing = Writing(tmp_path / "long")
    for step in range(6000):
        writing.metric(step, 1.0)
        if step % 50 == 0:
            writing.tensor(step, writing.series)
    writing.sink.close()
    for traced_at in (1233, 4012):
        traced().save(tmp_path / "long", step=traced_at)
    page = visit.page
    stands, trace = page.get_by_test_id("crosshair-step"), page.get_by_label("Trace", exact=True)
    with PageServer(tmp_path, port=0) as server:
        with page.expect_response(re.compile("/histogram")):
            page.goto(f"{server.address}#run=long&view=traces&trace=000002&step=1200")
        expect(part(page, BLOCKS)).to_be_attached()
        for now in ("1,233", "1,250"):
            page.keyboard.press("]")
            expect(stands).to_have_text(f"step {now}")
            expect(trace).to_have_value("000001")
        mark = page.get_by_role("button", name="Trace of step 4012").bounding_box()
        chart = page.get_by_role("img", name="loss over the steps").bounding_box()
        assert mark is not None
        assert chart is not None
        page.mouse.click(mark["x"] + mark["width"] / 2, chart["y"] + chart["height"] / 2)
        expect(stands).to_have_text("step 4,012")
        expect(trace).to_have_value("000002")


def test_picture_and_index_are_in_the_address_and_stay_for_the_next_operation(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces&op=1")
    value = page.get_by_test_id("picture-value")
    expect(value).to_have_attribute("data-picture", "grid")
    page.get_by_label("sample").fill("1")
    page.get_by_role("button", name="matrix").click()
    page.get_by_label("channel").fill("3")
    expect(page).to_have_url(re.compile(r"picture=matrix.*valueIndex=1\.3|valueIndex=1\.3.*picture=matrix"))
    page.get_by_role("button", name="Next operation").click()
    expect(page.get_by_test_id("op-label")).to_have_text(re.compile("conv2d_2"))
    for _ in range(2):
        expect(value).to_have_attribute("data-picture", "matrix")
        value.hover(position={"x": 3, "y": 3})
        expect(page.get_by_test_id("readout-value")).to_have_text(re.compile(r"^\[1, 3, 0, 0\]"))
        page.reload()
    search(page, "tanh")  # of two axes: nothing to choose a place on
    expect(value).to_have_attribute("aria-label", "Value, matrix of shape 2×8")
    page.go_back()
    expect(page.get_by_label("channel")).to_have_value("3")


def test_a_picture_that_does_not_fit_is_replaced_without_an_error(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces&op=1&picture=<b>&valueIndex=99.x&tile=64")
    expect(page.get_by_test_id("picture-value")).to_have_attribute("data-picture", "grid")
    page.get_by_test_id("picture-value").hover(position={"x": 3, "y": 3})
    expect(page.get_by_test_id("readout-value")).to_have_text(re.compile(r"^\[0, 0, 0, 0\]"))
    expect(page.get_by_text("The value cannot be shown")).to_have_count(0)


def test_a_module_shows_its_time_memory_and_output(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=net&view=traces&opened=0")
    click(page, BLOCKS)
    block = page.get_by_test_id("block")
    for _ in range(2):
        expect(block).to_contain_text(re.compile(r"FLOPs\s*[\d,]{5,}"))
        expect(block).to_contain_text("time")
        expect(block).to_contain_text("kB, all results together")
        expect(block.get_by_test_id("picture-value")).to_have_attribute("data-picture", "grid")
        page.reload()
    expect(part(page, BLOCKS)).to_have_attribute("aria-expanded", "false")  # nothing opens for its output
    block.get_by_role("button", name="relu_2").click()
    expect(page.get_by_test_id("op-label")).to_have_text(re.compile("relu_2"))


def test_a_trace_that_is_saved_while_the_page_is_open_appears(visit: Visit, tmp_path: Path) -> None:
    write_run(tmp_path / "live", steps=3)
    with PageServer(tmp_path, port=0) as server:
        visit.page.goto(f"{server.address}#run=live&view=traces")
        expect(visit.page.get_by_text("No traces in this run")).to_be_visible()
        expect(visit.page.get_by_test_id("live")).to_have_attribute("data-connected", "true")
        save_trace(tmp_path / "live")
        expect(part(visit.page, BLOCKS)).to_be_attached(timeout=15_000)


def test_other_views_request_traces_only_when_there_are_more(visit: Visit, tmp_path: Path) -> None:
    page, asked = visit.page, list[str]()
    page.on("request", lambda request: asked.append(request.url))
    write_run(tmp_path / "untraced")
    writing = Writing(tmp_path / "live")
    for step in range(3):
        writing.step(step)
    traced().save(tmp_path / "live", step=1)

    def asked_for(what: str) -> int:
        return sum(url.endswith(what) for url in asked)

    with PageServer(tmp_path, port=0) as server:
        page.goto(f"{server.address}#run=live")
        marks = page.get_by_role("button", name=re.compile("Trace of step"))
        expect(marks).to_have_count(1)
        expect(page.get_by_test_id("live")).to_have_attribute("data-connected", "true")
        for step in (3, 4):
            with page.expect_response(re.compile("live/sites"), timeout=15_000):
                writing.step(step)
        page.wait_for_timeout(1000)  # both are asked for together
        assert asked_for("live/traces") == 1
        traced().save(tmp_path / "live", step=2)
        expect(marks).to_have_count(2, timeout=15_000)
        page.get_by_role("row", name=re.compile("^untraced")).click()
        expect(page.get_by_test_id("run-title")).to_have_text("untraced")
        expect(page.get_by_test_id("histogram")).to_be_visible()
        expect(marks).to_have_count(0)
        assert asked_for("untraced/sites") > 0
        assert asked_for("untraced/traces") == 0
    writing.sink.close()
