"""Keys that work wherever the focus is, and the list of runs without a mouse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.server.runs import write_run

pytestmark = pytest.mark.browser


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    for name in ("a", "b", "c"):
        write_run(tmp_path / name, steps=12)
    with PageServer(tmp_path, port=0) as server:
        yield server.address


def test_keys_work_while_a_slider_or_a_box_has_the_focus(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a&step=5")
    expect(page.get_by_test_id("histogram")).to_be_visible()
    step = page.get_by_test_id("crosshair-step")
    page.get_by_role("slider", name="Step of the crosshair").press("]")
    expect(step).to_have_text("step 6")
    page.get_by_role("slider", name="Smoothing in percent").first.press("[")
    expect(step).to_have_text("step 5")
    page.get_by_role("checkbox", name="Compare a").press("[")
    expect(step).to_have_text("step 4")
    page.get_by_test_id("stat").press("]")
    page.get_by_role("searchbox").press("]")
    expect(page.get_by_role("searchbox")).to_have_value("]")
    expect(step).to_have_text("step 4")


def test_the_help_is_read_without_scrolling_and_teaches_the_graph(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a")
    expect(page.get_by_test_id("run-title")).to_have_text("a")
    page.keyboard.press("?")
    help_ = page.get_by_role("dialog", name="Help")
    for word in ("click its chevron", "column", "circle", "Color"):
        expect(help_).to_contain_text(word)
    assert help_.evaluate("element => element.scrollHeight <= element.clientHeight")
    page.set_viewport_size({"width": 900, "height": 400})
    page.keyboard.press("Escape")
    expect(help_).to_be_hidden()
    page.get_by_role("button", name="Help").click()
    expect(help_.get_by_role("heading", name="How to read this page")).to_be_in_viewport()


def test_runs_are_ticked_for_comparison_by_the_keyboard_alone(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=a")
    runs = page.get_by_test_id("runs")
    rows = runs.get_by_role("row")
    expect(rows).to_have_count(3)
    expect(runs).to_have_accessible_description(re.compile("Space ticks the run"))
    first, second, third = rows.locator(".name").all_inner_texts()
    ticked = {name: page.get_by_role("checkbox", name=f"Compare {name}") for name in (first, second, third)}
    title = page.get_by_test_id("run-title")
    runs.focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(title).to_have_text(first)
    for _ in (second, third):
        page.keyboard.press("Shift+ArrowDown")
        page.keyboard.press("Space")
    expect(rows.nth(2)).to_be_focused()
    expect(title).to_have_text(first)
    for box in ticked.values():
        expect(box).to_be_checked()
    expect(page).to_have_url(re.compile(f"runs={second}&runs={third}$"))
    page.keyboard.press("Space")
    expect(ticked[third]).not_to_be_checked()
    page.keyboard.press("Enter")
    expect(title).to_have_text(third)
    page.keyboard.press("ArrowUp")
    expect(title).to_have_text(second)
    expect(rows.nth(1)).to_be_focused()
