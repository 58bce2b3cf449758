"""The page as one file: no server, no network, whatever is clicked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from torch import nn

import layerscope as ls
from layerscope.cli.main import main
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.browser.test_traces import part, search
from tests.browser.tracing import ODD, traced
from tests.server.runs import write_run

pytestmark = pytest.mark.browser


@pytest.fixture
def alone(browser: Browser) -> Iterator[Page]:
    """A page in a browser that is cut off; it may ask for the file and for nothing else."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
    page = context.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert all(url.startswith("file:") and url.endswith(".html") for url in asked), asked
    assert wrong == []


def test_an_exported_trace_opens_from_the_disk_with_graph_values_and_code(alone: Page, tmp_path: Path) -> None:
    traced().export(tmp_path / "net.html")
    alone.goto((tmp_path / "net.html").as_uri())
    expect(alone.get_by_test_id("file")).to_have_text("saved page")
    expect(alone.get_by_role("tab")).to_have_text(["Traces"])  # it holds nothing else
    expect(part(alone, "stem|conv2d_1")).to_be_attached()
    search(alone, "tanh")
    expect(alone.get_by_test_id("op-label")).to_have_text("tanh_1_12:1")
    expect(alone.get_by_test_id("picture-value")).to_be_visible()
    expect(alone.get_by_test_id("picture-gradient")).to_be_visible()
    expect(alone.get_by_test_id("code").filter(visible=True).first).to_contain_text("torch.tanh")
    alone.get_by_label("every pass").check()
    expect(alone.get_by_role("treeitem").filter(has_text="tanh")).to_have_count(3)
    search(alone, "linear head")
    expect(alone.get_by_test_id("operation")).to_contain_text(ODD)
    assert alone.locator("img").count() == 0
    alone.reload()
    expect(alone.get_by_test_id("operation")).to_contain_text(ODD)
    uri = (tmp_path / "net.html").as_uri()
    alone.goto("about:blank")
    alone.goto(f"{uri}#view=traces&module=0&picture=line&valueIndex=1")  # it holds one picture of each
    expect(alone.get_by_test_id("block")).to_contain_text("FLOPs")
    expect(alone.get_by_test_id("picture-value")).to_have_attribute("data-picture", "matrix")


def test_structure_alone_opens_as_a_graph(alone: Page, tmp_path: Path) -> None:
    ls.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(1, 4), save=None).export(tmp_path / "net.html")
    alone.goto((tmp_path / "net.html").as_uri())
    search(alone, "relu")
    expect(alone.get_by_text("No value was saved")).to_be_visible()


def test_a_report_has_charts_heat_map_and_findings_of_the_run(alone: Page, tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "<!--<script>", steps=30)
    target = tmp_path / "run.html"
    assert main(["report", str(tmp_path / "runs" / "<!--<script>"), "-o", str(target)]) == 0
    alone.goto(target.as_uri())
    expect(alone.get_by_test_id("run-title")).to_have_text("<!--<script>")
    expect(alone.get_by_test_id("histogram")).to_have_attribute("data-points", "30")
    for axis in ("symlog", "exponent"):
        alone.get_by_role("button", name=axis).click()
        expect(alone.get_by_test_id("histogram")).to_be_visible()
    alone.get_by_role("button", name="one step").click()
    single = alone.get_by_test_id("histograms")
    expect(single.get_by_role("img")).to_have_attribute("aria-label", re.compile("in float16 all fit"))
    alone.get_by_role("slider", name="Step of the crosshair").press("ArrowLeft")
    expect(single).to_contain_text("@29")
    alone.get_by_role("slider", name="Step of the crosshair").press("ArrowLeft")
    expect(single).to_contain_text("@28")
    alone.get_by_role("button", name="over time").click()
    alone.get_by_test_id("stat").select_option("std")
    for tab, shown_there in (("Heat map", "Heat map"), ("Findings", "Findings")):
        alone.get_by_role("tab", name=tab).click()
        expect(alone.get_by_role("region", name=shown_there)).to_be_visible()
        expect(alone.get_by_text("Not in this file")).to_have_count(0)
    for tab in ("Tensors", "Compare"):
        expect(alone.get_by_role("tab", name=tab)).to_have_count(0)


def test_a_report_that_is_too_small_names_what_it_leaves_out_and_how_to_include_it(alone: Page, tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=30)
    target = tmp_path / "run.html"
    assert main(["report", str(tmp_path / "run"), "-o", str(target), "--size", "0.003"]) == 0
    alone.goto(target.as_uri())
    expect(alone.get_by_test_id("stage").get_by_text("Not in this file")).to_be_visible()
    expect(alone.get_by_text("1 history was recorded").first).to_be_visible()
    expect(alone.get_by_text("layerscope report RUN --size 40").first).to_be_visible()
    expect(alone.get_by_text("no recorded tensors")).to_have_count(0)


def test_a_report_of_a_run_without_steps_says_what_its_page_says(alone: Page, tmp_path: Path) -> None:
    FolderSink(create(tmp_path / "none")).close()
    target = tmp_path / "none.html"
    assert main(["report", str(tmp_path / "none"), "-o", str(target)]) == 0
    alone.goto(target.as_uri())
    expect(alone.get_by_role("tab", name="Charts")).to_be_visible()
    expect(alone.get_by_test_id("stage").get_by_text("ended before the first recorded step")).to_be_visible()
