"""The tree of sites, and the site that an address names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.browser.project import write_layers
from tests.server.runs import write_run

pytestmark = pytest.mark.browser
LONG = "transformer.encoder.layers.11.attention.projection.c_proj"

#: Whether the first and the last letter of an element are visible.
ENDS = """element => {
  const box = element.getBoundingClientRect();
  const text = document.createTreeWalker(element, NodeFilter.SHOW_TEXT).nextNode();
  return [0, text.length - 1].map((at) => {
    const range = document.createRange();
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    const letter = range.getBoundingClientRect();
    return letter.width > 0 && letter.left >= box.left - 1 && letter.right <= box.right + 1;
  });
}"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    write_layers(tmp_path / "layers", steps=4)
    write_run(tmp_path / "long", steps=4, site=LONG)
    with PageServer(tmp_path, port=0) as server:
        yield server.address


def test_a_long_name_in_the_search_results_shows_its_end(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=long")
    page.get_by_role("searchbox").fill("c_proj")
    row = page.get_by_test_id("sites").get_by_role("treeitem")
    expect(row).to_have_attribute("title", LONG)
    assert row.get_by_text(LONG).locator("xpath=..").evaluate(ENDS) == [False, True]
    page.goto(f"{address}#run=layers")
    page.get_by_role("searchbox").fill("attn")
    assert row.get_by_text("h.0.attn").locator("xpath=..").evaluate(ENDS) == [True, True]


def test_a_missing_site_is_reported_and_stays_in_the_address(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=layers&site=<b>gone")
    message = page.get_by_text("The run has no site “<b>gone”: showing “embed”.")
    expect(message).to_be_visible()
    expect(page.get_by_test_id("site-title")).to_have_text("embed")
    expect(page.get_by_test_id("histogram")).to_be_visible()
    page.keyboard.press("]")
    expect(page).to_have_url(re.compile("site=%3Cb%3Egone.*step=3"))
    page.reload()
    expect(message).to_be_visible()
    page.get_by_test_id("sites").get_by_role("treeitem").filter(has_text="head").click()
    expect(message).to_have_count(0)
    expect(page).to_have_url(re.compile("site=head"))


def test_a_site_is_shown_again_after_a_run_without_it(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=layers&site=head")
    title = page.get_by_test_id("site-title")
    rows = page.get_by_test_id("runs").get_by_role("row")
    expect(title).to_have_text("head")
    rows.filter(has_text="long").click()
    expect(title).to_have_text(LONG)
    expect(page.get_by_text("The run has no site “head”")).to_be_visible()
    rows.filter(has_text="layers").click()
    expect(title).to_have_text("head")
    page.go_back()
    expect(title).to_have_text(LONG)


def test_a_missing_default_site_causes_no_message(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=layers")
    title = page.get_by_test_id("site-title")
    expect(title).to_have_text("embed")
    for name, site in (("long", LONG), ("layers", "embed")):
        page.get_by_test_id("runs").get_by_role("row").filter(has_text=name).click()
        expect(title).to_have_text(site)
        expect(page.get_by_text("The run has no site")).to_have_count(0)
