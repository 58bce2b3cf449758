"""Keys that work wherever the focus is, and the list of runs without a mouse."""

from __future__ import annotations

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
    page.get_by_role("slider", name="Step of the cross-hair").press("]")
    expect(step).to_have_text("step 6")
    page.get_by_role("slider", name="Smoothing in percent").first.press("[")
    expect(step).to_have_text("step 5")
    page.get_by_role("checkbox", name="Compare a").press("[")
    expect(step).to_have_text("step 4")
    page.get_by_test_id("stat").press("]")
    page.get_by_role("searchbox").press("]")
    expect(page.get_by_role("searchbox")).to_have_value("]")
    expect(step).to_have_text("step 4")
