"""Histograms in a real browser: over time, of one step, and with the limits of a number format."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.server.runs import Writing, summaries, tensor_at, write_run

pytestmark = pytest.mark.browser


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    write_run(tmp_path / "run", steps=12)
    with PageServer(tmp_path, port=0) as server:
        yield server.address


def test_the_histogram_of_one_step_follows_the_crosshair(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=run")
    page.get_by_role("button", name="one step").click()
    single = page.get_by_test_id("histograms")
    expect(single).to_contain_text("@11")
    page.get_by_role("slider", name="Step of the crosshair").press("ArrowLeft")
    page.get_by_role("slider", name="Step of the crosshair").press("ArrowLeft")
    expect(single).to_contain_text("@10")
    expect(single).to_contain_text(f"max {tensor_at(10).max():.4g}")
    metrics = page.get_by_role("img", name=re.compile("^loss over the steps")).first
    metrics.hover(position={"x": 67, "y": 40})
    expect(single).to_contain_text("@0")
    page.mouse.move(5, 5)
    expect(single).to_contain_text("@10")
    with page.expect_download() as download:
        single.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    inside = [x for x in tensor_at(10) if float(rows[0]["from"]) <= x <= float(rows[-1]["to"])]
    assert sum(float(row["elements"]) for row in rows) == pytest.approx(len(inside), abs=3)
    page.reload()
    expect(single).to_contain_text("@10")
    page.get_by_role("button", name="over time").click()
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "12")


def test_the_picture_keeps_its_place_however_long_the_numbers_are(visit: Visit, tmp_path: Path) -> None:
    writing = Writing(tmp_path / "sizes")
    for step, tensor in enumerate([np.linspace(0, 4, 5), np.append(-np.pi * 1e-7 * np.arange(1, 400), np.nan)]):
        writing.sink.put(summaries(step, [writing.series], [tensor]))
        writing.metric(step, 1.0)
    writing.sink.close()
    with PageServer(tmp_path, port=0) as server:
        tops = set()
        for step in (0, 1):
            visit.page.goto(f"{server.address}#run=sizes&step={step}")
            expect(visit.page.get_by_role("region", name="Histogram over time")).to_contain_text(
                "NaN" if step else "max 4"
            )
            box = visit.page.get_by_test_id("histogram").bounding_box()
            assert box is not None
            tops.add((box["y"], box["height"]))
        assert len(tops) == 1


def test_the_exponent_axis_says_what_a_number_format_would_lose(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=run&step=5")
    formats = page.get_by_role("combobox", name="Number format")
    expect(page.get_by_test_id("histogram")).to_be_visible()
    expect(formats).to_have_count(0)
    page.get_by_role("button", name="exponent").click()
    expect(formats).to_have_value("float16")
    panel = page.get_by_role("region", name="Histogram over time")
    expect(panel).to_contain_text("in float16 all fit")
    formats.select_option("float4_e2m1fn")
    lost = {
        "become 0": (abs(tensor_at(5)) <= 0.25).mean(),
        "subnormal": ((abs(tensor_at(5)) > 0.25) & (abs(tensor_at(5)) < 1)).mean(),
    }
    for name, share in lost.items():
        expect(panel).to_contain_text(f"{100 * share:.3g} % {name}")
    page.get_by_role("button", name="one step").click()
    for name, share in lost.items():
        expect(page.get_by_test_id("histograms")).to_contain_text(f"{100 * share:.3g} % {name}")
    page.reload()
    expect(formats).to_have_value("float4_e2m1fn")
    formats.select_option("no limits")
    expect(page.get_by_test_id("histograms")).not_to_contain_text("become 0")
