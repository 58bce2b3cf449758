"""The page without a mouse and without sight: what assistive technology meets in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit, missing
from tests.browser.models import EXPLODING, TRAININGS, train

pytestmark = pytest.mark.browser
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
FAULTS = """
async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 120)}`))
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two real trainings with traces; in one of them the weights of a layer grow from step 20 on."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    for training in TRAININGS[:2]:
        for _ in train(training, folder / training.name):
            pass
    with PageServer(folder, port=0) as server:
        yield server.address


def opened(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.get_by_test_id("live")).to_have_attribute("data-connected", "true")
    page.wait_for_load_state("networkidle")


def test_no_view_has_a_serious_fault_of_accessibility_in_either_theme(visit: Visit, address: str) -> None:
    if not AXE.is_file():
        missing("axe-core is not installed: run `npm install` in `web`.")
    page = visit.page
    opened(page, f"{address}#run=mlp-exploding&runs=mlp&site={EXPLODING}&op=9&step=30")
    page.evaluate(AXE.read_text("utf-8"))
    tabs = page.get_by_role("tablist", name="Views").get_by_role("tab")
    for at in range(tabs.count()):
        tabs.nth(at).click()
        page.wait_for_load_state("networkidle")
        for _ in ("dark", "light"):
            found = page.evaluate(FAULTS)
            theme = page.evaluate("document.documentElement.dataset.theme")
            assert found == [], f"{tabs.nth(at).inner_text()}, {theme}"
            page.keyboard.press("t")
    page.keyboard.press("?")
    assert page.evaluate(FAULTS) == []


def tabbed_to(page: Page, wanted: Locator, most: int = 60) -> None:
    """Press Tab until something has the focus."""
    for _ in range(most):
        if wanted.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{wanted} cannot be reached by Tab")


def test_the_keyboard_alone_leads_from_the_list_of_runs_to_the_panel_of_a_site(visit: Visit, address: str) -> None:
    page = visit.page
    opened(page, address)
    tabbed_to(page, page.get_by_role("grid", name="Runs"))
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_test_id("run-title")).to_have_text("mlp-exploding")
    page.keyboard.press("/")
    page.keyboard.type(EXPLODING)
    expect(page.get_by_role("tree", name="Sites").get_by_role("treeitem").first).to_contain_text(EXPLODING)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("site-title")).to_have_text(EXPLODING)
    page.keyboard.press("Escape")
    tabbed_to(page, page.get_by_role("tab", selected=True))
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Graph")).to_be_focused()
    tabbed_to(page, page.get_by_test_id("graph"))
    panel = page.get_by_test_id("site-panel")
    expect(panel).to_have_attribute("data-site", EXPLODING)
    page.keyboard.press("ArrowDown")
    expect(panel).not_to_have_attribute("data-site", EXPLODING)
    expect(panel.get_by_role("img").first).to_be_visible()


def test_the_tree_that_is_read_aloud_follows_the_graph(visit: Visit, address: str) -> None:
    page = visit.page
    opened(page, f"{address}#run=mlp&view=graph&site=head")
    tree = page.get_by_test_id("graph")
    item = {name: tree.locator(f'[role=treeitem][data-key="{name}"]') for name in ("(model)", "hidden", "head")}
    levels = {name: int(found.get_attribute("aria-level") or 0) for name, found in item.items()}
    assert levels["hidden"] == levels["head"] == levels["(model)"] + 1
    expect(item["head"]).to_have_attribute("aria-selected", "true")
    expect(tree).to_have_attribute("aria-activedescendant", item["head"].get_attribute("id") or "")
    blocks = tree.locator('[role=treeitem][data-key="repeat:hidden.0"]')
    expect(item["hidden"]).to_have_attribute("aria-expanded", "true")
    expect(blocks).to_have_attribute("aria-level", str(levels["hidden"] + 1))
    expect(blocks).to_have_attribute("aria-expanded", "false")
    tree.focus()
    page.keyboard.press("ArrowUp")
    expect(blocks).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Backspace")
    expect(item["hidden"]).to_have_attribute("aria-expanded", "false")
    expect(blocks).to_have_count(0)
    page.keyboard.press("Enter")
    expect(blocks).to_have_count(1)


def test_an_exploding_layer_is_found_from_the_list_of_runs_in_four_clicks(visit: Visit, address: str) -> None:
    page = visit.page
    opened(page, address)
    clicks = 0

    def click(found: Locator) -> None:
        nonlocal clicks
        clicks += 1
        found.click()

    badge = page.get_by_test_id("runs").get_by_role("row").filter(has_text="mlp-exploding").get_by_test_id("badge")
    expect(badge).to_be_visible(timeout=20_000)
    click(badge)
    finding = page.get_by_test_id("finding").first
    expect(finding).to_contain_text(f"Updates are too large: '{EXPLODING}.weight' (Linear)")
    expect(page.get_by_test_id("finding").nth(1)).to_contain_text(f"Gradients explode: '{EXPLODING}' (Linear)")
    click(finding.get_by_role("button", name="Heat map"))
    expect(page.get_by_role("region", name="Heat map").get_by_role("treeitem", selected=True)).to_contain_text("weight")
    click(page.get_by_role("button", name="Charts", exact=True))
    expect(page.get_by_test_id("site-title")).to_have_text(f"{EXPLODING}.weight")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 20")
    assert clicks <= 4


#: Where the nodes stand once nothing has moved for ten frames.
PLACES_AT_REST = """async (graph) => {
  const now = () => [...graph.querySelectorAll("[role=treeitem]")].map((e) => [e.dataset.key, e.dataset.x]);
  let places = now();
  for (let still = 0; still < 10; still++) {
    await new Promise((go) => requestAnimationFrame(go));
    if (JSON.stringify(now()) !== JSON.stringify(places)) [places, still] = [now(), -1];
  }
  return places;
}"""


def test_the_nodes_keep_their_places_when_another_run_of_the_model_is_chosen(visit: Visit, address: str) -> None:
    page = visit.page
    opened(page, f"{address}#run=mlp&view=graph&site=head")
    graph = page.get_by_test_id("graph")
    graph.focus()
    for key in ("-", "-", "-"):
        page.keyboard.press(key)
    places = graph.evaluate(PLACES_AT_REST)
    page.get_by_test_id("runs").get_by_role("row").filter(has_text="mlp-exploding").click()
    expect(page.get_by_test_id("run-title")).to_have_text("mlp-exploding")
    page.wait_for_load_state("networkidle")
    assert len(places) > 3
    assert graph.evaluate(PLACES_AT_REST) == places


def test_training_and_evaluation_of_a_site_are_drawn_in_one_chart(visit: Visit, address: str) -> None:
    page = visit.page
    opened(page, f"{address}#run=mlp&site=head&step=25")
    page.get_by_label("with eval").check()
    chart = page.get_by_role("img", name="rms of head over the steps")
    expect(chart).to_have_attribute("data-points", str(40 + 8))
    for mode in ("train", "eval"):
        expect(page.get_by_test_id(f"mode-{mode}").locator("b")).not_to_have_text("–")
    page.reload()
    expect(page.get_by_test_id("mode-eval")).to_be_visible()


def test_charts_and_graphs_are_exported_as_drawings(visit: Visit, address: str, tmp_path: Path) -> None:
    page = visit.page
    opened(page, f"{address}#run=mlp&site=head")
    for at, words in enumerate(("mlp loss", "mlp head output rms", "max")):
        drawing = kept(page, page.get_by_role("button", name="SVG").nth(at), tmp_path)
        assert words in drawing
        assert "<path" in drawing
    page.get_by_role("tab", name="Graph").click()
    expect(page.get_by_test_id("graph")).to_be_visible()
    graph = kept(page, page.get_by_role("button", name="SVG").nth(1), tmp_path)
    for words in ("embed", "Linear · 64×64", "head", "output.0"):
        assert f">{words}<" in graph


def kept(page: Page, button: Locator, folder: Path) -> str:
    """The text of the file that a button gives, after the browser has read it as a picture."""
    with page.expect_download() as download:
        button.click()
    download.value.save_as(folder / "kept.svg")
    text = (folder / "kept.svg").read_text("utf-8")
    parsed = "text => new DOMParser().parseFromString(text, 'image/svg+xml').querySelector('parsererror') === null"
    assert page.evaluate(parsed, text)
    return text
