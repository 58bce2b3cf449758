"""The tree of sites, and the site that an address names."""

from __future__ import annotations

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

#: Whether the first and the last letter of an element are in sight.
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


def test_a_found_site_that_is_too_long_shows_its_end(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=long")
    page.get_by_role("searchbox").fill("c_proj")
    row = page.get_by_test_id("sites").get_by_role("treeitem")
    expect(row).to_have_attribute("title", LONG)
    assert row.get_by_text(LONG).locator("xpath=..").evaluate(ENDS) == [False, True]
    page.goto(f"{address}#run=layers")
    page.get_by_role("searchbox").fill("attn")
    assert row.get_by_text("h.0.attn").locator("xpath=..").evaluate(ENDS) == [True, True]
