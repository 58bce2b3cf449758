"""Every view of six families of networks as pictures: python -m tests.browser.screenshots [FOLDER [NAME …]]."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import torch
from playwright.sync_api import Browser, Page, sync_playwright
from rich.progress import Progress

from layerscope.cli.main import VIEW
from layerscope.demos import recurrent_bug
from layerscope.server.serve import PageServer
from tests.browser.conftest import FLAGS, chromium
from tests.browser.models import EXPLODING, STEPS, TRAININGS, train

#: A site for each run whose pictures show much.
SITES = {
    "mlp": "hidden.1.0",
    "mlp-exploding": EXPLODING,
    "resnet": "layer2.0.conv2",
    "gpt2": "transformer.h.2.mlp.c_fc",
    "lstm": "lstm",
    "unet": "up2.conv1",
}
#: The runs with named tensors, shown in the view of tensors.
NAMED = ("bugged", "fixed")
NAMED_STEPS = 300
#: Pictures of the documentation, by the views they are.
DOCUMENTED = {
    "page-graph.png": "gpt2-graph-whole-dark-1280.png",
    "page-step.png": "gpt2-charts-step-light-1280.png",
    "page-traces.png": "unet-traces-light-1280.png",
    "page-heatmap.png": "mlp-exploding-heatmap-dark-1280.png",
    "page-findings.png": "mlp-exploding-findings-light-1280.png",
}
IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZES = ((1280, 800), (1920, 1080))
THEMES = ("dark", "light")
#: Connected, and every run of the list has been checked.
READY = """() => {
  const rows = [...document.querySelectorAll("[data-testid=runs] [role=row]")];
  const connected = document.querySelector("[data-testid=live]")?.dataset.connected === "true";
  return connected && rows.length > 0 && rows.every((row) => row.querySelector("[data-testid=badge]") !== null);
}"""


def views(run: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each view of a run: its name, and what its address says."""
    site, step = SITES[run], str(STEPS - 10)
    yield "charts", {"site": site, "metricLog": "1", "overlay": "1"}
    yield "charts-gradient", {"site": site, "kind": "output_grad", "axis": "exponent", "log": "1", "step": step}
    at_step = {"axis": "exponent", "oneStep": "1", "format": "float8_e5m2", "step": step}
    yield "charts-step", {"site": site, "kind": "output_grad", **at_step}
    yield "graph", {"view": "graph", "site": site, "step": step}
    yield "graph-whole", {"view": "graph", "step": step}
    yield "heatmap", {"view": "heatmap", "site": site, "step": step}
    yield "findings", {"view": "findings"}
    yield "traces", {"view": "traces", "op": "9"}
    yield "traces-time", {"view": "traces", "traceColor": "elapsed_s"}
    other = {"mlp": "mlp-exploding", "mlp-exploding": "mlp"}.get(run, f"{run}-fast")
    for way in ("curves", "difference", "histograms"):
        both = {"view": "compare", "runs": other, "site": site, "step": str(STEPS // 2 - 1)}
        yield f"compare-{way}", both | ({} if way == "curves" else {"comparing": way})
    yield "compare-step", {**both, "comparing": "histograms", "oneStep": "1"}


def named_views() -> Iterator[tuple[str, dict[str, str]]]:
    """Each view of a run with named tensors."""
    node = {"view": "tensors", "type": "05_iterations", "node": "before_sigmoid"}
    yield "tensors", node
    yield "tensors-beside", {**node, "beside": NAMED[1]}
    yield (
        "tensors-values",
        {**node, "node": "memory", "sample": "0", "valueForm": "image", "iteration": "2", "allLinks": "1"},
    )
    for pane in ("samples", "metrics", "notes", "network", "custom"):
        yield f"tensors-{pane}", {**node, "pane": pane, "sample": "0"}


def make_runs(folder: Path, names: list[str], progress: Progress) -> None:
    """Train what is not there yet: each network, and again for half as long with larger steps, to compare with."""
    torch.set_num_threads(1)  # the networks are too small for more
    chosen = [training for training in TRAININGS if training.name in names]
    again = [replace(each, name=f"{each.name}-fast", rate=3 * each.rate) for each in chosen if "mlp" not in each.name]
    wanted = [(each, STEPS) for each in chosen] + [(each, STEPS // 2) for each in again]
    wanted = [(each, steps) for each, steps in wanted if not (folder / each.name).exists()]
    task = progress.add_task("training", total=sum(steps for _, steps in wanted))
    for training, steps in wanted:
        for _ in train(training, folder / training.name, steps):
            progress.advance(task)
    if NAMED[0] in names and not (folder / NAMED[0]).exists():
        recurrent_bug.train(folder, NAMED_STEPS, lambda steps, what: progress.track(steps, description=what))


def photograph(browser: Browser, address: str, folder: Path, names: list[str], progress: Progress) -> None:
    """A picture of each view, in each theme and size."""
    shown = [(name, *view) for name in names for view in (named_views() if name in NAMED else views(name))]
    task = progress.add_task("pictures", total=len(SIZES) * len(THEMES) * len(shown))
    for width, height in SIZES:
        for theme in THEMES:
            context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
            page = context.new_page()
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
            for name, view, said in shown:
                picture = folder / f"{name}-{view}-{theme}-{width}.png"
                take(page, f"{address}#{urlencode({'run': name} | said)}", picture)
                progress.advance(task)
            context.close()


def take(page: Page, address: str, picture: Path) -> None:
    """A picture of the page at an address, once all answers are there."""
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_function(READY, timeout=120_000)
    page.wait_for_load_state("networkidle")
    if "The server failed" in page.inner_text("body"):
        raise RuntimeError(f"{picture.stem} shows an error, see {address}")
    page.screenshot(path=picture)


def main(folder: Path, names: list[str]) -> None:
    runs = folder / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    with Progress() as progress:
        make_runs(runs, names, progress)
        with PageServer(runs, port=0, view=VIEW) as server, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
            photograph(browser, server.address, folder, names, progress)
            browser.close()
    if os.environ.get("LAYERSCOPE_SCREENSHOTS"):
        for documented, picture in DOCUMENTED.items():
            shutil.copyfile(folder / picture, IMAGES / documented)


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "build/screenshots"), sys.argv[2:] or [*SITES, NAMED[0]])
