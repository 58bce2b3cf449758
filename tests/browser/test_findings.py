"""Findings in a real browser: from the list of runs to the fault in few clicks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.browser.models import EXPLODING, TRAININGS, train
from tests.browser.project import write_layers

pytestmark = pytest.mark.browser


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    write_layers(tmp_path / "broken", nan_at=20)
    write_layers(tmp_path / "sound")
    with PageServer(tmp_path, port=0) as server:
        yield server.address


def test_two_clicks_lead_from_the_list_to_the_first_layer_with_nan(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=sound")
    runs = page.get_by_test_id("runs")
    badge = runs.get_by_role("row").filter(has_text="broken").get_by_test_id("badge")
    expect(badge).to_have_text(re.compile(r"\d"), timeout=20_000)
    badge.click()
    expect(page.get_by_test_id("verdict")).to_contain_text("error")
    first = page.get_by_test_id("finding").first
    expect(first).to_contain_text("h.1.attn")
    expect(first).to_contain_text("since step 20")
    first.get_by_role("button", name="Charts").click()
    expect(page.get_by_test_id("site-title")).to_have_text("h.1.attn")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 20")
    expect(page.get_by_test_id("not-finite")).to_be_visible()
    page.go_back()
    first.get_by_role("button", name="Heat map").press("Enter")
    expect(page.get_by_test_id("heatmap")).to_be_visible()
    expect(page.get_by_role("tab", name="Heat map")).to_be_focused()
    expect(page).to_have_url(re.compile("site=h.1.attn"))


def test_a_link_to_the_graph_opens_the_groups_around_the_layer_and_colors_by_the_finding(
    visit: Visit, tmp_path: Path
) -> None:
    for _ in train(next(each for each in TRAININGS if each.broken), tmp_path / "mlp"):
        pass
    page = visit.page
    with PageServer(tmp_path, port=0) as server:
        page.goto(f"{server.address}#run=mlp&view=findings")
        first = page.get_by_test_id("finding").first
        expect(first).to_contain_text(f"update of {EXPLODING}.weight Linear")
        first.get_by_role("button", name="Graph").click()
        part = page.get_by_test_id("graph").locator(f'[role=treeitem][data-key="{EXPLODING}"]')
        expect(part).to_have_attribute("aria-selected", "true")
        expect(page.get_by_label("Kind that colors the graph")).to_have_value("update")
        expect(page).to_have_url(re.compile("stat=ratio"))  # the number that it rests on
        panel = page.get_by_test_id("site-panel")
        expect(panel.get_by_role("img", name="Histogram of update")).to_be_visible()
        # The layer, and not the model: that its loss grows is about the training as a whole.
        expect(page.get_by_test_id("alarm")).to_have_count(1)


def test_a_healthy_run_says_so_and_lists_what_was_not_checked(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=sound&view=findings")
    expect(page.get_by_test_id("verdict")).to_contain_text("healthy")
    expect(page.get_by_text("Checked, no problem found")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="NaN and Inf in any tensor")).to_be_visible()
    page.get_by_text("not checked").click()
    expect(page.get_by_test_id("findings")).to_contain_text("needs kind weight_grad")


def test_only_relevant_events_are_marked_on_the_axis_and_the_slider_keeps_its_step_after_a_reload(
    visit: Visit, address: str
) -> None:
    page = visit.page
    page.goto(f"{address}#run=sound&step=10")
    marks = page.get_by_role("note")
    expect(marks).to_have_count(1)
    expect(marks).to_have_attribute("aria-label", "note at step 3: a new learning rate")
    slider = page.get_by_role("slider", name="Step of the crosshair")
    expect(slider).to_have_value("10")
    page.reload()
    expect(page.get_by_test_id("histogram")).to_be_visible()
    expect(slider).to_have_value("10")
    assert slider.evaluate("input => [Number(input.min), Number(input.max)]") == [-0.5, 29.5]
