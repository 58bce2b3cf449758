"""The page as a widget, in a real notebook: marimo, with a kernel of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

import layerscope
from tests.browser.conftest import Visit
from tests.browser.project import write_layers
from tests.browser.tracing import save_trace
from tests.server.runs import write_run

pytestmark = pytest.mark.browser
NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def _():
    import layerscope as ls
    from layerscope import widgets

    widgets.IN_WIDGET = 20_000  # bytes: the widget must ask Python for nearly everything
    ls.open({run!r}).show({shown})
    return
"""


@contextmanager
def notebook(folder: Path, run: str, shown: str = "") -> Iterator[str]:
    """Address of a notebook whose one cell shows a run of the folder."""
    (folder / "notebook.py").write_text(NOTEBOOK.format(run=run, shown=shown))
    with socket.socket() as free:  # two notebooks that begin together would choose the same port themselves
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "marimo", "run", "notebook.py", "--headless", "--no-token", "--host", "127.0.0.1"]
    quiet = {**os.environ, "XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    with subprocess.Popen([*line, "--port", str(port)], cwd=folder, stdout=subprocess.DEVNULL, env=quiet) as process:
        try:
            wait_until_it_listens(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    """marimo prints its address before it listens there."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise AssertionError(f"The notebook does not listen on port {port} (exit {process.poll()}).")


def test_a_widget_in_a_notebook_shows_a_trace_and_asks_python_for_its_values(visit: Visit, tmp_path: Path) -> None:
    save_trace(tmp_path / "net")
    with notebook(tmp_path, "net") as address:
        visit.page.goto(address)
        frame = visit.page.frame_locator("iframe[title=layerscope]")
        frame.get_by_role("combobox", name="Search operations").fill("conv2d_2", timeout=60_000)
        frame.get_by_role("option").first.click()
        frame.get_by_role("button", name="matrix").click()
        expect(frame.get_by_test_id("picture-value")).to_have_attribute("data-picture", "matrix")
        frame.get_by_label("sample").fill("1")
        frame.get_by_test_id("picture-value").hover(position={"x": 3, "y": 3})
        expect(frame.get_by_test_id("readout-value")).to_contain_text("[1, 0, 0, 0]")


def test_a_widget_in_a_notebook_shows_the_histories_of_a_run(visit: Visit, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with notebook(tmp_path, "run") as address:
        visit.page.goto(address)
        frame = visit.page.frame_locator("iframe[title=layerscope]")
        expect(frame.get_by_test_id("histogram")).to_be_visible(timeout=60_000)
        frame.get_by_role("tab", name="Heat map").click()
        expect(frame.get_by_test_id("heatmap")).to_be_visible()


@pytest.mark.feature("T5")
@pytest.mark.feature("T6")
def test_a_notebook_begins_at_a_heat_map_and_a_double_click_leads_to_the_histogram_of_a_site_and_step(
    visit: Visit, tmp_path: Path
) -> None:
    write_layers(tmp_path / "run", nan_at=20)
    layerscope.open(tmp_path / "run").add_curves({"step": [0, 10, 29], "from_elsewhere": [3.0, 2.0, 1.0]})
    with notebook(tmp_path, "run", '"heatmap", kind="output", stat="std", step=12, every=3') as address:
        visit.page.goto(address)
        frame = visit.page.frame_locator("iframe[title=layerscope]")
        heat = frame.get_by_test_id("heatmap")
        expect(heat).to_have_attribute("data-columns", "10", timeout=60_000)  # as Python thins them out
        frame.get_by_role("combobox", name="Stride of steps").select_option("1")
        expect(heat).to_have_attribute("data-columns", "30")
        expect(frame.get_by_test_id("crosshair-step")).to_have_text("step 12")
        frame.get_by_role("button", name="from_elsewhere").click()
        plot, label = heat.bounding_box(), heat.get_by_title("h.1.attn", exact=True).bounding_box()
        assert plot is not None
        assert label is not None
        heat.dblclick(position={"x": plot["width"] / 2, "y": label["y"] - plot["y"] + label["height"] / 2})
        expect(frame.get_by_test_id("histogram")).to_be_visible()
        expect(frame.get_by_role("heading", name="h.1.attn")).to_be_visible()
        expect(frame.get_by_test_id("crosshair-step")).not_to_have_text("step 12")
