"""Metrics: one alone, or several in one chart."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from layerscope.model.records import Metric
from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.server.runs import Writing

pytestmark = pytest.mark.browser
STEPS = 12
METRICS = {"loss": 1.0, "accuracy/top1": 0.5, "<b>rate": 0.01}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    writing = Writing(tmp_path / "run")
    for step in range(STEPS):
        writing.tensor(step, writing.series)
        for name, scale in METRICS.items():
            writing.sink.put(Metric(step, name, scale / (step + 1), float(step)))
    writing.sink.close()
    with PageServer(tmp_path, port=0) as server:
        yield server.address


def chip(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name="Which metric is drawn").get_by_role("button", name=name)


def drawn(page: Page, *names: str) -> Locator:
    """The chart of these metrics, once it is drawn, and their chips are pressed."""
    for name in METRICS:
        expect(chip(page, name)).to_have_attribute("aria-pressed", str(name in names).lower())
    chart = page.get_by_role("img", name=f"{', '.join(names)} over the steps", exact=True)
    expect(chart).to_have_attribute("data-points", str(STEPS * len(names)))
    return chart


def border(found: Locator) -> str:
    return str(found.evaluate("element => getComputedStyle(element).borderTopColor"))


#: Colors of the pixels of a chart, as CSS writes them.
COLORS = """element => {
  const canvas = element.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4)
    if (data[at + 3] === 255) seen.add(`rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`);
  return [...seen];
}"""


def test_several_metrics_are_drawn_in_one_chart_each_in_the_color_of_its_chip(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=run")
    drawn(page, "loss")
    chip(page, "accuracy/top1").click(modifiers=["Control"])
    drawn(page, "loss", "accuracy/top1")
    chip(page, "<b>rate").click(modifiers=["Shift"])
    chart = drawn(page, "loss", "accuracy/top1", "<b>rate")
    expect(page).to_have_url(re.compile("metric=loss&.*metrics=accuracy%2Ftop1&metrics=%3Cb%3Erate"))
    colors = [border(chip(page, name)) for name in METRICS]
    assert len(set(colors)) == len(METRICS)
    assert set(colors) <= set(chart.evaluate(COLORS))
    with page.expect_download() as download:
        page.get_by_role("region", name="Metrics").get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "run_loss_accuracy_top1_b_rate.csv"
    rows = csv.DictReader(Path(download.value.path()).read_text("utf-8").splitlines())
    assert {row["curve"] for row in rows} == set(METRICS)
    page.reload()
    drawn(page, "loss", "accuracy/top1", "<b>rate")
    chip(page, "loss").click(modifiers=["Control"])
    drawn(page, "accuracy/top1", "<b>rate")
    chip(page, "loss").click()
    drawn(page, "loss")
    chip(page, "loss").click(modifiers=["Control"])
    drawn(page, "loss")
    expect(page).not_to_have_url(re.compile("metrics="))


@pytest.mark.parametrize("keys", ["Control+Enter", "Control+Space", "Shift+Enter", "Shift+Space"])
def test_the_keyboard_adds_a_metric_and_takes_it_away(visit: Visit, address: str, keys: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=run")
    drawn(page, "loss")
    chip(page, "accuracy/top1").press(keys)
    drawn(page, "loss", "accuracy/top1")
    chip(page, "accuracy/top1").press(keys)
    drawn(page, "loss")
    chip(page, "accuracy/top1").press("Enter")
    drawn(page, "accuracy/top1")


def test_metrics_that_a_run_does_not_have_are_left_out(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=run&metric=loss&metrics=loss&metrics=gone&metrics=accuracy/top1")
    drawn(page, "loss", "accuracy/top1")


def test_a_value_names_its_step_where_one_pixel_covers_several(visit: Visit, tmp_path: Path) -> None:
    writing = Writing(tmp_path / "long")
    for step in range(4000):
        writing.sink.put(Metric(step, "number", float(step), float(step)))
    writing.sink.close()
    with PageServer(tmp_path, port=0) as server:
        others = 0
        for step in range(2000, 2006):
            visit.page.goto("about:blank")
            visit.page.goto(f"{server.address}#run=long&step={step}")
            expect(chip(visit.page, "number")).to_contain_text("20")
            value, _, label = chip(visit.page, "number").inner_text().removeprefix("number").partition("@")
            assert int(value) == (int(label.replace(",", "")) if label else step)
            within = visit.page.get_by_test_id("readout-number").get_by_test_id("step-label").inner_text()
            first, last = re.findall(r"[\d,]+", within)
            assert int(first.replace(",", "")) <= step <= int(last.replace(",", ""))
            others += bool(label)
        assert others > 0
