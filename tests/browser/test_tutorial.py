"""The steps of `docs/tutorial.md` to the bug, with both runs of the demo, in a real browser.

With LAYERSCOPE_SCREENSHOTS=1 the trainings are as long as the demo's, and the pictures of the page are drawn anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from layerscope.cli.main import VIEW
from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.browser.test_journeys import IMAGES
from tests.lesson import DRAWS, recorded_lesson

pytestmark = pytest.mark.browser
TYPE = "05_iterations"
WAY = ("input", "seen", "memory", "last_layer", "before_sigmoid", "output", "loss_per_sample", "loss")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with PageServer(recorded_lesson(tmp_path_factory), port=0, view=VIEW) as server:
        yield server.address


def keep(page: Page, name: str) -> None:
    """The picture of the page that the tutorial shows, if it shall be drawn."""
    if DRAWS:
        page.wait_for_load_state("networkidle")
        page.mouse.move(5, 5)
        page.get_by_test_id("tensors").screenshot(path=IMAGES / f"tutorial-{name}.png")


def number(cell: Locator) -> float:
    return float(cell.inner_text().replace("−", "-").replace(",", ""))


def settled(page: Page, node: str, run: str) -> Locator:
    """The panel of a run once it shows the node."""
    panel = page.locator(f"[data-testid=panel][data-run={run}]")
    expect(panel.get_by_test_id("statistics").locator("h3")).to_contain_text(node)
    expect(page.get_by_test_id("tensors")).to_have_attribute("data-busy", "false")
    return panel


def statistic(panel: Locator, name: str) -> float:
    return number(panel.locator(f"[data-stat={name}]"))


def neurons(page: Page, address: str, **chosen: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The numbers of one sample of a tensor, as the page shows them."""
    said = {"run": "bugged", "view": "tensors", "type": TYPE, "sample": "0", **chosen}
    page.goto("about:blank")
    page.goto(f"{address}#{'&'.join(f'{key}={value}' for key, value in said.items())}")
    panel = settled(page, chosen["node"], said["run"])
    cells = panel.get_by_test_id("values").locator("tbody td")
    expect(cells).to_have_count(5)
    return np.array([number(cell) for cell in cells.all()])


def tab(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_walking_from_the_input_to_the_loss_finds_values_that_rise_but_do_not_fall(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=bugged")
    page.get_by_role("tab", name="Tensors").click()
    page.get_by_test_id("type").select_option(TYPE)
    page.get_by_test_id("node").select_option("input")
    settled(page, "input", "bugged")
    page.get_by_test_id("dependencies").focus()
    for node in WAY[1:]:
        page.keyboard.press("ArrowRight")
        settled(page, node, "bugged")
        if node == "memory":
            keep(page, "graph")
    page.get_by_test_id("node").select_option("before_sigmoid")
    panel = settled(page, "before_sigmoid", "bugged")
    panel.locator("[data-stat=min]").click()
    keep(page, "asymmetry")
    assert statistic(panel, "max") > 20 * -statistic(panel, "min")

    page.get_by_test_id("tensor-run").select_option("fixed")
    panel = settled(page, "before_sigmoid", "fixed")
    expect(page.get_by_test_id("type")).to_have_value(TYPE)
    assert statistic(panel, "max") < 4 * -statistic(panel, "min")


def test_the_lowest_answer_is_near_a_half_in_one_run_and_near_zero_in_the_other(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=bugged&beside=fixed&view=tensors&type={TYPE}&node=output")
    lowest = {run: statistic(settled(page, "output", run), "min") for run in ("bugged", "fixed")}
    assert lowest["bugged"] > 0.4
    assert lowest["fixed"] < 0.05
    page.get_by_test_id("node").select_option("before_sigmoid")
    for run in ("bugged", "fixed"):
        settled(page, "before_sigmoid", run)
    keep(page, "fixed")


def test_the_gradient_before_the_last_activation_is_a_hundredth_of_the_one_behind_it(
    visit: Visit, address: str
) -> None:
    page = visit.page
    target = neurons(page, address, node="target")
    value = neurons(page, address, node="before_sigmoid")
    wanted = neurons(page, address, node="before_sigmoid", loss="")
    keep(page, "gradient")
    through = neurons(page, address, node="last_layer", loss="")
    keep(page, "gradient-before")
    expect(page.get_by_test_id("what")).to_have_value("∇")
    assert ((wanted > 0) == (target == 0)).all()  # descending, the loss asks for lower values
    negative = value < 0
    assert negative.any()
    np.testing.assert_allclose(through[negative], 0.01 * wanted[negative], rtol=0.01)
    np.testing.assert_allclose(through[~negative], wanted[~negative], rtol=0.01)


def test_the_losses_of_both_runs_are_compared_type_by_type(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=bugged&view=tensors&types=01_iterations+10_iterations+20_iterations")
    tab(page, "Notes")
    expect(page.get_by_test_id("notes")).to_contain_text("training steps")
    tab(page, "Network")
    expect(page.get_by_test_id("network")).to_contain_text("subnet_main")
    tab(page, "Metrics")
    charts = page.get_by_test_id("metric-charts")
    expect(charts.locator("figure").first).to_be_visible()
    keep(page, "metrics")
    page.get_by_test_id("metric-beside").select_option("fixed")
    loss = charts.locator("figure").filter(has=page.get_by_role("heading", name="loss", exact=True))
    expect(loss.locator("li[title^=fixed]").first).to_be_visible()
    page.set_viewport_size({"width": 1280, "height": 840})  # two lines of names
    keep(page, "losses")
    for run in ("bugged", "fixed"):
        expect(loss.locator(f"li[title='{run} · 01_iterations'] b")).to_be_visible()
    last = {run: number(loss.locator(f"li[title='{run} · 01_iterations'] b")) for run in ("bugged", "fixed")}
    assert last["fixed"] < last["bugged"] / 2


def test_the_loss_of_a_sample_is_high_where_its_sum_is_near_zero(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=fixed&view=tensors&type={TYPE}&node=helper_partial_sums&role=so far")
    tab(page, "Samples")
    page.get_by_label("Tensor 1").select_option("helper_partial_sums@so far")
    page.get_by_label("Tensor 2").select_option("loss_per_sample")
    table = page.get_by_role("table", name="Samples of fixed")
    expect(table.locator("tbody tr")).to_have_count(5)
    expect(table.locator("thead")).to_contain_text("loss_per_sample")
    expect(page.get_by_test_id("scatter")).to_be_visible()
    keep(page, "sums")
    rows = [[number(cell) for cell in row.locator("td").all()] for row in table.locator("tbody tr").all()]
    sums, losses = np.abs(np.array(rows)[:, :5]).ravel(), np.array(rows)[:, 5:].ravel()
    highest = np.argsort(losses)[-5:]
    assert sums[highest].mean() < np.delete(sums, highest).mean() / 2


def test_the_custom_view_of_the_demo_follows_the_selection(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=fixed&view=tensors&type=10_iterations&sample=1")
    tab(page, VIEW.name)
    picture = page.get_by_test_id("custom-view").locator("img")
    expect(picture).to_be_visible(timeout=30_000)  # matplotlib takes its time to be imported
    keep(page, "own-view")
    first = picture.get_attribute("src")
    page.get_by_test_id("sample").select_option("2")
    expect(picture).not_to_have_attribute("src", first or "")
