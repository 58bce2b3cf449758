"""Named tensors in a real browser: graph, selectors, two runs side by side, metrics, notes and network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.server.named_runs import write_named
from tests.server.runs import write_run

pytestmark = pytest.mark.browser

VIEW = """
def view(selection, run):
    if selection.node == "loss":
        raise ValueError("this view knows no <b>loss</b>")
    return [f"{selection.node} at step {selection.step}", [("the ", 0.1), ("cat", 1.0)]]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_named(folder / "runs" / "a")
    write_named(folder / "runs" / "b", scale=4.0)
    write_run(folder / "runs" / "plain")
    (folder / "mine.py").write_text(VIEW)
    return folder


@pytest.fixture
def address(project: Path) -> Iterator[str]:
    with PageServer(project / "runs", port=0, view=project / "mine.py") as server:
        yield f"{server.address}#run=a&view=tensors"


def node(page: Page, name: str) -> Locator:
    return page.get_by_test_id("dependencies").first.locator(f'[data-node="{name}"]:not([data-type="earlier"])')


def stat(page: Page, name: str) -> Locator:
    return page.get_by_test_id("statistics").first.locator(f'[data-stat="{name}"]')


def place(page: Page, name: str) -> str:
    found = node(page, name).get_attribute("transform")
    assert found is not None
    return found


def test_a_click_shows_a_node_with_its_links_statistics_and_values(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(address)
    node(page, "memory").click()
    expect(page).to_have_url(re.compile("node=memory"))
    expect(node(page, "memory")).to_have_attribute("aria-selected", "true")
    graph = page.get_by_test_id("dependencies")
    expect(graph.locator("path.link")).to_have_count(4)  # from pre_out, pre and itself one iteration ago, to output
    expect(graph.locator("path.link.earlier")).to_have_count(1)
    expect(node(page, "memory").locator("title")).to_contain_text("from pre_out, memory, pre; to output")
    expect(stat(page, "mean_of_sample_std")).to_be_visible()
    values = page.get_by_test_id("values")
    expect(values.get_by_role("row")).to_have_count(9)
    expect(values.get_by_role("columnheader", name="1 easy")).to_be_visible()
    page.get_by_role("checkbox", name="all links").check()
    expect(graph.locator("path.link")).to_have_count(9)


def test_sides_without_parents_or_children_are_dotted_and_links_of_other_roles_thin(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&node=pre&role=0.weight&iteration=1")
    expect(node(page, "input").locator('[data-side="left"]')).to_have_class(re.compile("dotted"))
    expect(node(page, "input").locator('[data-side="right"]')).not_to_have_class(re.compile("dotted"))
    expect(node(page, "memory").locator('[data-side="right"]')).to_have_class(re.compile("dotted"))
    thin = page.get_by_test_id("dependencies").locator("path.link.thin")
    expect(thin).to_have_attribute("data-link", "pre memory")
    page.get_by_test_id("role").select_option("0.bias")
    expect(thin).to_have_attribute("data-link", "pre pre_out")


def test_arrow_keys_walk_from_node_to_node(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&node=output&type=long")
    expect(node(page, "output")).to_have_attribute("aria-selected", "true")
    page.get_by_test_id("dependencies").focus()
    for key, name in (
        ("ArrowLeft", "memory"),
        ("ArrowRight", "output"),
        ("ArrowRight", "loss"),
        ("ArrowLeft", "output"),
    ):
        page.keyboard.press(key)
        expect(node(page, name)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(node(page, "target")).to_have_attribute("aria-selected", "true")


def test_arrow_keys_walk_on_before_the_numbers_of_the_last_node_have_arrived(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&node=output&type=long")
    expect(node(page, "output")).to_have_attribute("aria-selected", "true")
    page.route("**/api/tensors?*", lambda route: route.abort())
    page.get_by_test_id("dependencies").focus()
    for key, name in (("ArrowLeft", "memory"), ("ArrowRight", "output")):
        page.keyboard.press(key)
        expect(page).to_have_url(re.compile(f"node={name}"))
    page.unroute("**/api/tensors?*")
    page.keyboard.press("ArrowRight")
    expect(node(page, "loss")).to_have_attribute("aria-selected", "true")


def test_a_click_on_the_run_beside_swaps_the_two(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&beside=b")
    expect(page.get_by_test_id("panel")).to_have_count(2)
    page.get_by_test_id("runs").get_by_role("row").filter(has_text=re.compile(r"^\s*b\b")).click()
    expect(page).to_have_url(re.compile("run=b.*beside=a"))
    expect(page.get_by_test_id("panel").first).to_have_attribute("data-run", "b")
    expect(page.get_by_test_id("panel").last).to_have_attribute("data-run", "a")


def test_a_source_of_an_earlier_iteration_leads_there(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&type=long&iteration=2&node=memory")
    page.get_by_test_id("dependencies").locator('[data-type="earlier"].node').click()
    expect(page.get_by_test_id("iteration")).to_have_value("1")
    expect(page.get_by_test_id("node")).to_have_value("memory")


def test_the_selection_survives_every_switch_and_is_in_the_address(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(address)
    page.get_by_test_id("type").select_option("long")
    page.get_by_test_id("node").select_option("memory")
    page.get_by_test_id("iteration").select_option("2")
    page.get_by_test_id("sample").select_option("1")
    page.get_by_test_id("what").select_option("∇loss_b")
    expect(page.get_by_test_id("statistics")).to_contain_text("gradient of loss_b")
    page.get_by_test_id("step").fill("20")
    page.get_by_test_id("step").press("Enter")
    expect(page.get_by_text("@20 · long · iteration 2")).to_be_visible()
    mean = stat(page, "mean").inner_text()
    before = place(page, "memory")
    page.get_by_test_id("tensor-run").select_option("b")
    expect(page.get_by_test_id("panel")).to_have_attribute("data-run", "b")
    expect(stat(page, "mean")).not_to_have_text(mean)
    assert place(page, "memory") == before
    page.get_by_test_id("tensor-run").select_option("a")
    expect(stat(page, "mean")).to_have_text(mean)
    page.reload()
    expect(stat(page, "mean")).to_have_text(mean)
    for name, value in (("type", "long"), ("step", "20"), ("iteration", "2"), ("sample", "1"), ("what", "∇loss_b")):
        expect(page.get_by_test_id(name)).to_have_value(value)


def test_a_missing_selection_is_reported_and_stays_selected(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&type=long&iteration=3&node=loss")
    expect(stat(page, "mean")).to_be_visible()
    page.get_by_test_id("type").select_option("short")
    expect(page.get_by_test_id("fallback")).to_have_text("no iteration 3 in this step")
    page.get_by_test_id("iteration").select_option("1")
    expect(page.get_by_text("It is in iteration 2.")).to_be_visible()
    expect(node(page, "loss")).to_have_attribute("data-type", "absent")
    page.get_by_test_id("iteration").select_option("2")
    expect(stat(page, "mean")).to_be_visible()


def test_two_runs_side_by_side_follow_the_same_selectors(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&node=memory&iteration=1")
    page.get_by_test_id("beside").select_option("b")
    expect(page.get_by_test_id("panel")).to_have_count(2)
    page.get_by_test_id("node").select_option("input")
    for panel in page.get_by_test_id("panel").all():
        expect(panel.locator('[data-node="input"]')).to_have_attribute("aria-selected", "true")
    for part in page.locator("[data-testid=statistics], [data-testid=values] [role=group]").all():
        assert part.evaluate("part => part.scrollWidth <= part.clientWidth")
    stat(page, "std").click()
    expect(page.get_by_role("img", name="std of input · iteration 1 of 2 runs over the steps")).to_be_visible()
    first, second = (
        panel.locator('[data-node="memory"].near, [data-node="pre_out"]').first
        for panel in page.get_by_test_id("panel").all()
    )
    assert first.get_attribute("transform") == second.get_attribute("transform")


def test_values_are_shown_as_bars_and_image_and_keys_walk_the_steps(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&node=memory&type=short")
    values = page.get_by_test_id("values")
    values.get_by_role("button", name="bars").click()
    expect(values.get_by_test_id("picture-mean")).to_have_attribute("data-picture", "line")
    values.get_by_role("button", name="image").click()
    expect(values.get_by_test_id("picture-image")).to_have_attribute("data-picture", "matrix")
    page.keyboard.press("[")
    expect(page.get_by_test_id("step")).to_have_value("30")
    page.keyboard.press("]")
    expect(page.get_by_test_id("step")).to_have_value("50")


def test_two_tensors_are_related_sample_by_sample(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&type=long&pane=samples&node=partial_sums&role=sum")
    table = page.get_by_role("table", name="Samples of a")
    expect(table.get_by_role("row")).to_have_count(4)
    page.get_by_label("Tensor 2").select_option("output")
    expect(page.get_by_test_id("scatter")).to_have_attribute("data-points", "45")
    expect(page.get_by_test_id("scatter")).to_have_attribute("aria-label", "output against partial_sums · sum")
    table.get_by_role("button", name="2", exact=True).click()
    expect(page.get_by_test_id("sample")).to_have_value("2")


def test_metrics_compare_runs_and_types_and_notes_and_network_are_shown(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&pane=metrics&beside=b")
    charts = page.get_by_test_id("metric-charts")
    expect(charts.get_by_role("img", name="loss of 4 curves over the steps")).to_be_visible()
    expect(page.get_by_role("region", name="Metrics of accuracy").get_by_role("img")).to_have_count(2)
    page.get_by_role("group", name="Step types").get_by_role("button", name="long").click()
    expect(charts.get_by_role("img", name="loss of 2 curves over the steps")).to_be_visible()
    expect(page).to_have_url(re.compile("types=short"))
    page.get_by_role("button", name="Notes").click()
    expect(page.get_by_test_id("notes")).to_contain_text("a new <b>learning rate</b>")
    page.get_by_role("button", name="Network").click()
    tree = page.get_by_test_id("network")
    expect(tree.get_by_role("row").filter(has_text="weight")).to_contain_text("83.3 %")
    tree.get_by_role("button", name="0", exact=True).click()
    expect(tree.get_by_role("row")).to_have_count(4)


def test_a_custom_view_follows_the_selection_and_the_file(visit: Visit, address: str, project: Path) -> None:
    page = visit.page
    page.goto(f"{address}&node=memory&step=30&pane=custom")
    own = page.get_by_test_id("custom-view")
    expect(own).to_contain_text("memory at step 30")
    expect(own.get_by_text("cat")).to_be_visible()
    page.get_by_test_id("node").select_option("loss")
    expect(own.get_by_role("alert")).to_contain_text("ValueError: this view knows no <b>loss</b>")
    (project / "mine.py").write_text(VIEW.replace('"loss"', '"nothing"').replace("at step", "in step"))
    expect(own).to_contain_text("loss in step 30")
    (project / "mine.py").write_text(VIEW)


def test_a_run_without_named_tensors_says_how_to_name_them(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(address.replace("run=a", "run=plain"))
    expect(page.get_by_text("No named tensors")).to_be_visible()
    expect(page.get_by_text('run.record("memory", h)')).to_be_visible()
    page.get_by_test_id("tensor-run").select_option("a")
    expect(page.get_by_test_id("dependencies")).to_be_visible()


IN_SIGHT = """nodes => {
  const room = nodes.getBoundingClientRect();
  return [...nodes.querySelectorAll(".node rect")].every((rect) => {
    const box = rect.getBoundingClientRect();
    return box.left >= room.left && box.right <= room.right && box.top >= room.top && box.bottom <= room.bottom;
  });
}"""
#: Visible share of each column header, from 0 to 1.
SHARES = """body => {
  const right = body.getBoundingClientRect().right;
  return [...body.querySelectorAll("thead th")].map((head) => {
    const box = head.getBoundingClientRect();
    return Math.max(Math.min((right - box.left) / box.width, 1), 0);
  });
}"""


def test_two_runs_fit_into_their_halves_and_share_one_color_scale(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&node=memory&type=long&beside=b")
    expect(page.get_by_test_id("panel")).to_have_count(2)
    for graph in page.get_by_test_id("dependencies").all():
        assert graph.evaluate(IN_SIGHT)
    first, second = page.get_by_test_id("value-scale").all()
    assert first.inner_text() == second.inner_text()
    expect(first).to_contain_text("in both runs")
    page.get_by_role("button", name="image").first.click()
    scales = [values.locator(".scale") for values in page.get_by_test_id("values").all()]
    expect(scales[0]).to_be_visible()
    assert scales[0].inner_text() == scales[1].inner_text()


def test_numbers_that_do_not_fit_fade_at_the_edge_and_begin_with_whole_columns(visit: Visit, address: str) -> None:
    page = visit.page
    page.set_viewport_size({"width": 1000, "height": 800})
    page.goto(f"{address}&node=memory&type=long&beside=b")
    body = page.get_by_test_id("values").first.get_by_role("group", name="Numbers")
    expect(body.get_by_role("columnheader", name="mean")).to_be_attached()
    assert body.evaluate("body => body.scrollWidth > body.clientWidth")
    expect(body).to_have_css("--fade-right", "16px")
    assert all(share < 0.3 or share > 0.99 for share in body.evaluate(SHARES))
    body.evaluate("body => body.scrollTo(body.scrollWidth, 0)")
    expect(body).to_have_css("--fade-right", "0px")
    page.set_viewport_size({"width": 1920, "height": 1080})
    expect(body).to_have_css("--fade-right", "0px")
    assert body.evaluate(SHARES)[-1] == 1


def test_the_samples_are_visible_to_their_last_column(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&type=long&pane=samples&node=memory")
    expect(page.get_by_role("table", name="Samples of a")).to_be_visible()
    assert page.locator(".tables").evaluate("tables => tables.scrollWidth <= tables.clientWidth")


def test_the_timeline_is_visible_and_its_slider_selects_the_step(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}&node=memory&type=short")
    metrics = page.get_by_role("region", name="Metrics", exact=True)
    expect(metrics.get_by_role("img", name="loss over the steps")).to_be_visible()
    slider, step = page.get_by_role("slider", name="Step of the crosshair"), page.get_by_test_id("step")
    expect(step).to_have_value("50")
    expect(slider).to_have_value("50")
    expect(metrics.get_by_test_id("crosshair-step")).to_have_text("step 50")
    slider.fill("28")
    expect(step).to_have_value("30")
    slider.press("ArrowLeft")
    expect(step).to_have_value("10")
    step.fill("30")
    step.press("Enter")
    expect(slider).to_have_value("30")
    expect(metrics.get_by_test_id("crosshair-step")).to_have_text("step 30")
    page.get_by_role("button", name="Metrics", exact=True).click()
    expect(page.get_by_test_id("metric-charts")).to_be_visible()
    expect(metrics.get_by_test_id("crosshair-step")).to_have_count(0)
    expect(slider).to_be_in_viewport()
