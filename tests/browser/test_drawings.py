"""Drawn graphs in a real browser: what the table of character widths promises is true of its fonts."""

from __future__ import annotations

import pytest

from layerscope.views.draw.output import svg
from layerscope.views.draw.picture import DrawOptions, graph_view
from tests.browser.conftest import Visit
from tests.views import graphs

pytestmark = pytest.mark.browser

OVERFLOWING = """() => [...document.querySelectorAll('.node, .group')].flatMap(part => {
    const rect = part.querySelector('rect'), texts = [...part.querySelectorAll('text')];
    if (!rect) return [];
    const box = rect.getBBox();
    return texts.filter(text => {
        const found = text.getBBox();
        return found.x < box.x || found.x + found.width > box.x + box.width
            || found.y < box.y || found.y + found.height > box.y + box.height;
    }).map(text => text.textContent);
})"""
PICTURES = {
    "transformer": (graphs.transformer(4), DrawOptions(depth=3)),
    "recurrent": (graphs.lstm(4), DrawOptions()),
    "colored": (graphs.residual(3), DrawOptions(depth=1, color_by="elapsed_s")),
}


@pytest.mark.parametrize("font", ["Liberation Sans", "DejaVu Sans"])
@pytest.mark.parametrize("name", PICTURES)
def test_no_text_leaves_its_box(visit: Visit, name: str, font: str) -> None:
    record, options = PICTURES[name]
    visit.page.set_content(svg(graph_view(record, graphs.named(record), options)))
    visit.page.add_style_tag(content=f"text {{ font-family: '{font}', sans-serif !important }}")
    assert visit.page.evaluate(OVERFLOWING) == []


def test_a_dark_reader_gets_a_dark_picture(visit: Visit) -> None:
    record = graphs.chain(3)
    visit.page.set_content(svg(graph_view(record, graphs.named(record))))
    fill = "() => getComputedStyle(document.querySelector('.page')).fill"
    assert visit.page.evaluate(fill) == "rgb(18, 22, 28)"
    visit.page.emulate_media(color_scheme="light")
    assert visit.page.evaluate(fill) == "rgb(255, 255, 255)"
