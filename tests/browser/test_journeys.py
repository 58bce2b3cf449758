"""Journeys through the page: real browser, real server, real training."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from layerscope.server.serve import PageServer
from tests.browser.conftest import Visit
from tests.server.runs import Writing, summaries, write_run

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    write_run(folder / "earlier", steps=40)
    return folder


@pytest.fixture
def address(project: Path) -> Iterator[str]:
    with PageServer(project, port=0) as server:
        yield server.address


@pytest.fixture
def training(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.browser.training", str(project / "live"), "4000", "0.02"]
    process = subprocess.Popen(command, cwd=ROOT)
    yield process
    process.kill()
    process.wait()


def points(page: Page) -> int:
    return int(page.get_by_test_id("histogram").get_attribute("data-points") or 0)


def chosen(page: Page) -> tuple[str, ...]:
    """What the page shows, in its own words."""
    texts = [page.get_by_test_id(name).inner_text() for name in ("run-title", "site-title", "crosshair-step")]
    pressed = page.locator("[aria-pressed=true]").all_inner_texts()
    stat = page.get_by_test_id("stat").input_value()
    return (*texts, *(text.split()[0] for text in pressed), stat)


def open_run(page: Page, name: str) -> None:
    page.get_by_test_id("runs").get_by_role("row").filter(has_text=name).click()
    expect(page.get_by_test_id("run-title")).to_have_text(name)


def test_the_charts_grow_while_the_training_runs_and_the_address_restores_the_view(
    visit: Visit, address: str, training: subprocess.Popen[bytes]
) -> None:
    page = visit.page
    page.goto(address)
    page.get_by_test_id("runs").get_by_role("row").filter(has_text="live").click(timeout=30_000)
    page.get_by_role("searchbox").fill("1.act")
    page.get_by_test_id("sites").get_by_role("treeitem").first.click()
    expect(page.get_by_test_id("site-title")).to_have_text("1.act")
    expect(page.get_by_test_id("histogram")).to_be_visible()
    before, step = points(page), last_step(page)
    page.wait_for_function(
        "n => Number(document.querySelector('[data-testid=histogram]')?.dataset.points) > n", arg=before + 20
    )
    page.wait_for_function("n => Number(document.querySelector('[data-testid=last-step]')?.dataset.step) > n", arg=step)
    assert training.poll() is None

    page.get_by_test_id("stat").select_option("std")
    page.get_by_role("button", name="exponent").click()
    plot = page.get_by_test_id("histogram").bounding_box()
    assert plot is not None
    page.mouse.click(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] / 2)
    page.mouse.move(5, 5)
    expect(page.get_by_test_id("crosshair-step")).to_be_visible()
    shown = chosen(page)
    for part in ("run=live", "site=1.act", "stat=std", "axis=exponent", "step="):
        assert part in page.url
    page.reload()
    expect(page.get_by_test_id("crosshair-step")).to_be_visible()
    expect(page.get_by_test_id("histogram")).to_be_visible()
    assert chosen(page) == shown


def last_step(page: Page) -> int:
    return int(page.get_by_test_id("last-step").get_attribute("data-step") or -1)


def test_the_page_comes_back_after_a_restart_of_the_server(visit: Visit, project: Path) -> None:
    page = visit.page
    with PageServer(project, port=0) as server:
        page.goto(server.address)
        expect(page.get_by_test_id("live")).to_have_attribute("data-connected", "true")
        port = int(server.address.rstrip("/").rsplit(":", 1)[1])
    expect(page.get_by_test_id("live")).to_have_attribute("data-connected", "false")
    write_run(project / "meanwhile", steps=2)
    with PageServer(project, port=port) as server:
        assert server.address.endswith(f":{port}/")
        expect(page.get_by_test_id("runs").get_by_text("meanwhile")).to_be_visible(timeout=15_000)


def test_an_empty_folder_says_what_to_do_and_shows_the_first_run_when_it_comes(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    with PageServer(tmp_path, port=0) as server:
        page.goto(server.address)
        stage = page.get_by_test_id("stage")
        expect(stage).to_contain_text("No runs in this folder yet")
        expect(stage).to_contain_text(f'ls.watch(model, to="{tmp_path.name}/first")')
        expect(page.get_by_text("Choose a run", exact=True)).to_have_count(0)
        expect(page.get_by_test_id("live")).to_have_attribute("data-connected", "true")
        write_run(tmp_path / "first", steps=3)
        expect(page.get_by_test_id("histogram")).to_be_visible(timeout=15_000)
        expect(page.get_by_test_id("run-title")).to_have_text("first")


def test_a_run_deleted_while_it_is_shown_is_reported_as_gone(visit: Visit, project: Path, address: str) -> None:
    page = visit.page
    write_run(project / "other", steps=3)
    page.goto(f"{address}#run=earlier")
    expect(page.get_by_test_id("histogram")).to_be_visible()
    shutil.rmtree(project / "earlier")
    expect(page.get_by_text("This run cannot be shown")).to_be_visible(timeout=15_000)
    open_run(page, "other")
    expect(page.get_by_test_id("histogram")).to_be_visible()


ODD_NAMES = (
    "<img src=x onerror=document.title='hit'>" + "y" * 460,
    """quotes ' " ` and \\ and &amp; and %20#?""",
    "größe.\u202eהפוך.层.🔥.e\u0301",
)


@pytest.mark.parametrize("name", ODD_NAMES, ids=["html", "quotes", "unicode"])
def test_odd_names_are_shown_as_text(visit: Visit, project: Path, address: str, name: str) -> None:
    page = visit.page
    write_run(project / "<b>odd</b>", steps=3, site=name)
    page.goto(address)
    open_run(page, "<b>odd</b>")
    title = page.get_by_test_id("site-title")
    expect(title).to_have_text(name)
    expect(title).to_have_attribute("title", name)
    assert page.locator("img").count() == 0
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("tab", name="Charts").click()
    page.reload()
    expect(title).to_have_text(name)
    assert "hit" not in page.title()


def no_step(folder: Path) -> None:
    Writing(folder).sink.close()


def one_number(folder: Path) -> None:
    write_run(folder, steps=1)


def only_nan(folder: Path) -> None:
    writing = Writing(folder)
    for step in range(3):
        writing.sink.put(summaries(step, [writing.series], [np.full(500, np.nan)]))
        writing.metric(step, float("nan"))
    writing.sink.close()


@pytest.mark.parametrize("make", [no_step, one_number, only_nan], ids=["no step", "one step", "all NaN"])
def test_no_view_of_a_run_with_little_data_is_empty(
    visit: Visit, project: Path, address: str, make: Callable[[Path], None]
) -> None:
    page = visit.page
    make(project / "poor")
    page.goto(f"{address}#run=poor")
    expect(page.get_by_test_id("run-title")).to_have_text("poor")
    stage = page.get_by_test_id("stage")
    for tab in page.get_by_role("tab").all():
        tab.click()
        expect(stage.get_by_text(re.compile("^Reading|^Checking|^Laying"))).to_have_count(0)
        assert len(stage.inner_text()) > 60
        assert "undefined" not in stage.inner_text()


def test_the_keyboard_alone_finds_a_site_walks_the_steps_and_zooms_out(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=earlier&first=5&last=20")
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "16")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("lay")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("site-title")).to_have_text("layer")
    page.keyboard.press("Escape")
    page.keyboard.press("]")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 20")
    page.keyboard.press("[")
    expect(page.get_by_test_id("crosshair-step")).to_have_text("step 19")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "40")


def test_dragging_over_a_chart_zooms_into_its_steps(visit: Visit, address: str) -> None:
    page = visit.page
    page.goto(f"{address}#run=earlier")
    plot = page.get_by_test_id("histogram")
    expect(plot).to_have_attribute("data-points", "40")
    expect(page.get_by_role("img", name="loss over the steps")).to_have_attribute("data-points", "40")
    plot.hover(position={"x": 300, "y": 60})
    expect(page.get_by_test_id("crosshair-step")).to_be_visible()
    page.mouse.down()
    plot.hover(position={"x": 500, "y": 60})
    expect(page.get_by_test_id("stage")).to_contain_class("choosing")
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"first=\d+&last=\d+"))
    first, last = (int(step) for step in re.findall(r"(?:first|last)=(\d+)", page.url))
    assert 0 < first < last < 39
    expect(plot).to_have_attribute("data-points", str(last - first + 1))
    plot.dblclick(position={"x": 300, "y": 60})
    expect(page).not_to_have_url(re.compile("first="))
    expect(plot).to_have_attribute("data-points", "40")


@pytest.fixture
def broken(project: Path) -> Path:
    """A run whose loss became NaN, and whose tensor changed its data type."""
    writing = Writing(project / "broken")
    other = writing.series_of("bfloat16")
    for step in range(6):
        writing.tensor(step, writing.series if step < 4 else other)
        writing.metric(step, (1.0, 0.5, float("inf"), 0.7, 0.6, float("nan"))[step])
    writing.sink.close()
    return project / "broken"


def color(found: Locator) -> str:
    return str(found.evaluate("element => getComputedStyle(element).color"))


@pytest.mark.parametrize(("theme", "red"), [("dark", "rgb(255, 107, 74)"), ("light", "rgb(194, 59, 20)")])
def test_a_loss_that_is_nan_or_infinite_is_shown_in_red(
    visit: Visit, address: str, broken: Path, theme: Literal["dark", "light"], red: str
) -> None:
    page = visit.page
    page.emulate_media(color_scheme=theme)
    page.goto(f"{address}#run=broken")
    in_list = page.get_by_test_id("runs").get_by_role("row").filter(has_text="broken").get_by_text("NaN", exact=True)
    in_panel = page.get_by_role("group", name="Which metric is drawn").get_by_text("NaN", exact=True)
    for found in (in_list, in_panel):
        expect(found).to_be_visible()
        assert color(found) == red
    page.goto(f"{address}#run=broken&step=2")
    infinite = page.get_by_role("group", name="Which metric is drawn").get_by_text("∞", exact=True)
    expect(infinite).to_be_visible()
    assert color(infinite) == red


def test_every_data_type_of_a_tensor_can_be_chosen_and_the_newest_comes_first(
    visit: Visit, address: str, broken: Path
) -> None:
    page = visit.page
    page.goto(f"{address}#run=earlier")
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "40")
    choice = page.get_by_role("combobox", name="Data type and phase")
    expect(choice).to_have_count(0)
    open_run(page, "broken")
    expect(choice.locator("option:checked")).to_have_text("bfloat16 · forward phase")
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "2")
    choice.select_option(label="float64 · forward phase")
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "4")
    expect(page).to_have_url(re.compile("dtype=float64&phase=forward"))
    page.reload()
    expect(page.get_by_test_id("histogram")).to_have_attribute("data-points", "4")
    expect(choice.locator("option:checked")).to_have_text("float64 · forward phase")


def test_a_run_without_metrics_shows_its_last_step(visit: Visit, project: Path, address: str) -> None:
    writing = Writing(project / "bare")
    writing.tensor(1200, writing.series)
    writing.sink.close()
    visit.page.goto(f"{address}#run=bare")
    expect(visit.page.get_by_test_id("last-step")).to_have_text("1,200")


@pytest.mark.skipif(not os.environ.get("LAYERSCOPE_SCREENSHOTS"), reason="set LAYERSCOPE_SCREENSHOTS=1 to draw anew")
def test_the_pictures_of_the_documentation_are_drawn(visit: Visit, tmp_path: Path) -> None:
    demo = [sys.executable, "-m", "layerscope.cli", "demo", "--no-serve", "--to", str(tmp_path / "runs" / "spirals")]
    subprocess.run(demo, cwd=ROOT, check=True, capture_output=True)
    page = visit.page
    IMAGES.mkdir(parents=True, exist_ok=True)
    with PageServer(tmp_path / "runs", port=0) as server:
        for theme, name in (("dark", "page.png"), ("light", "page-light.png")):
            page.emulate_media(color_scheme="light" if theme == "light" else "dark")
            page.goto(f"{server.address}#site=blocks.2.act&metricLog=1")
            expect(page.get_by_test_id("histogram")).to_be_visible()
            plot = page.get_by_test_id("histogram").bounding_box()
            assert plot is not None
            page.mouse.move(5, 5)
            page.mouse.move(plot["x"] + plot["width"] * 0.72, plot["y"] + plot["height"] * 0.4)
            expect(page.get_by_test_id("crosshair-step")).to_be_visible()
            page.screenshot(path=IMAGES / name)
