"""Labels of axes, as they stand in the pictures that are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.browser.project import write_layers
from tests.browser.test_downloads import kept
from tests.server.runs import Writing, summaries

pytestmark = pytest.mark.browser


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A run whose loss lies around the only round number, and whose magnitudes are three powers of two and zero."""
    writing = Writing(tmp_path / "run")
    for step in range(8):
        writing.metric(step, 1.15 + 0.24 * step)
        writing.sink.put(summaries(step, [writing.series], [np.array([0.0, 0.25, 0.5, 1.0])]))
    writing.sink.close()
    write_layers(tmp_path / "flat", sites=[f"layer{at}" for at in range(60)])
    with PageServer(tmp_path, port=0) as server:
        yield server.address


def labels(text: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", text)


def test_a_low_chart_labels_two_values(visit: Visit, address: str) -> None:
    page = visit.page
    page.set_viewport_size({"width": 1280, "height": 640})
    page.goto(f"{address}#run=run")
    _, text = kept(page, page.get_by_role("region", name="Metrics").get_by_role("button", name="SVG"))
    assert len({"1.5", "2", "2.5"} & set(labels(text))) >= 2


def test_ticks_beside_the_strip_of_zeros_stay(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=run&site=layer&kind=output&axis=exponent")
    _, text = kept(page, page.get_by_role("region", name="Histogram over time").get_by_role("button", name="SVG"))
    assert {"2⁻²", "2⁻¹", "2⁰", "2¹", "0"} <= set(labels(text))


def test_the_last_of_many_rows_is_named(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=flat&view=heatmap")
    names = page.get_by_test_id("heatmap").get_by_role("treeitem")
    names.first.wait_for()
    assert names.count() < 60
    assert names.last.get_attribute("title") == "layer59"
