"""How fast the page is: real Chromium, a real server, a run of 2,000 sites × 1,000 steps, a trace of 50,000 operations.

python -m benchmarks.page [--json PATH] [--repeat 7] [--project FOLDER]

A time ends with the first frame that shows what was asked for. Beside it stands the processor time of the server: on a
machine with other things to do, that is the figure to compare. FOLDER keeps what is looked at for the next time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.page_project import RUN, STAGES, TRACE, More, make
from layerscope.server.app import STATIC
from tests.browser.conftest import FLAGS, chromium

Row = dict[str, str]
Measure = Callable[[Path, int], list[Row]]  # of a project, as often as told
MB = 1 << 20
FRAME_MS = 1000 / 30
LOOK_MS = 1500  # that somebody looks at a chart before going on

#: Counts what is being asked for; `settled` comes with the frame that shows the last answer.
WATCH = """
window.asked = 0; window.answered = 0;
const fetched = window.fetch;
window.fetch = async (...given) => {
  window.asked++;
  const done = () => { window.answered++; };
  try {
    const response = await fetched(...given);
    const whole = response.arrayBuffer.bind(response);
    if (!response.ok) done();
    response.arrayBuffer = async () => { try { return await whole(); } finally { done(); } };
    return response;
  } catch (error) { done(); throw error; }
};
window.frame = () => new Promise((go) => requestAnimationFrame(() => go()));
window.settled = async (isThere) => {
  for (const end = performance.now() + 60000; performance.now() < end; ) {
    await frame();
    if (window.asked !== window.answered || !isThere()) continue;
    await frame();
    await new Promise((go) => setTimeout(go));
    if (window.asked === window.answered && isThere()) return performance.now();
  }
  throw new Error(`not there after a minute: ${isThere}`);
};
"""
TIMED = (
    "async ([act, there]) => { const from = performance.now(); eval(act); return await settled(eval(there)) - from; }"
)
FRAMES = """async (kind) => {
  const graph = document.querySelector('[data-testid=graph]'), box = graph.getBoundingClientRect();
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  const more = { bubbles: true, cancelable: true, clientX: x, clientY: y };
  const times = [];
  await frame();
  for (let at = 0, last = performance.now(); at < 90; at++) {
    const back = Math.floor(at / 15) % 2 ? -1 : 1;
    graph.dispatchEvent(new WheelEvent('wheel', kind === 'zoom'
      ? { ...more, deltaY: back * 30 } : { ...more, deltaY: back * 20, shiftKey: true }));
    await frame();
    times.push(performance.now() - last);
    last = performance.now();
  }
  return times;
}"""


def row(what: str, measured: str, limit: str = "", *, kept: bool = True) -> Row:
    return {"what": what, "measured": measured, "limit": limit, "kept": "" if not limit else "yes" if kept else "NO"}


@dataclass
class Served:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    address: str

    def memory(self) -> dict[str, int]:
        """Bytes in memory: all, own (RssAnon) and of mapped files (RssFile)."""
        return memory_of(self.process.pid)

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_of(process: int) -> dict[str, int]:
    found = re.findall(r"(VmRSS|RssAnon|RssFile):\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return {name: int(size) << 10 for name, size in found}


@contextmanager
def served(project: Path) -> Iterator[Served]:
    command = [sys.executable, "-m", "layerscope.cli", "ui", str(project), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    address = re.search(r"http://\S+", process.stdout.readline())
    assert address is not None
    try:
        yield Served(process, address[0])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


@dataclass
class Times:
    """What one thing took, again and again."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def row(self, what: str, limit_s: float | None) -> Row:
        """The median as a row of the table, with its limit if it has one."""
        wall, cpu = statistics.median(self.wall_s), statistics.median(self.cpu_s)
        spread = f" ({min(self.wall_s) * 1e3:.0f}–{max(self.wall_s) * 1e3:.0f})" if len(self.wall_s) > 1 else ""
        measured = f"{wall * 1e3:.0f} ms{spread}, server {cpu * 1e3:.0f} ms"
        if limit_s is None:
            return row(what, measured)
        return row(what, measured, f"{limit_s * 1e3:.0f} ms", kept=wall <= limit_s)


class Measured:
    """A tab, and what was measured in it."""

    def __init__(self, browser: Browser, server: Served) -> None:
        context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark")
        context.add_init_script(WATCH)
        self.page: Page = context.new_page()
        self.server = server

    def open(self, fragment: str, there: str) -> Times:
        """From the first byte of the page to the frame that shows something."""
        self.page.goto("about:blank")
        cpu = self.server.cpu_s()
        self.page.goto(f"{self.server.address}#{fragment}")
        shown = self.page.evaluate(f"settled(() => {there})")
        began = self.page.evaluate("performance.getEntriesByType('navigation')[0].responseStart")
        return Times([(shown - began) / 1e3], [self.server.cpu_s() - cpu])

    def act(self, act: str, there: str, times: Times) -> None:
        """From an action to the frame that shows what came of it."""
        cpu = self.server.cpu_s()
        took = self.page.evaluate(TIMED, [act, f"() => {there}"])
        times.wall_s.append(took / 1e3)
        times.cpu_s.append(self.server.cpu_s() - cpu)


def has(test_id: str, more: str = "") -> str:
    return f"document.querySelector('[data-testid={test_id}]{more}') !== null"


def click(text: str) -> str:
    return f"[...document.querySelectorAll('button')].find((b) => b.textContent.trim() === '{text}').click()"


def choose(test_id: str, value: str) -> str:
    return (
        f"{{ const s = document.querySelector('[data-testid={test_id}]'); s.value = '{value}'; "
        "s.dispatchEvent(new Event('change', { bubbles: true })); }"
    )


def address(**parts: object) -> str:
    return "&".join(f"{name}={value}" for name, value in parts.items())


def charts(tab: Measured, repeat: int) -> list[Row]:
    rows = [tab.open(address(run=RUN), has("histogram")).row("first useful paint, server just started", 1.0)]
    again = [tab.open(address(run=RUN), has("histogram")) for _ in range(repeat)]
    rows.append(_joined(again).row("first useful paint", 1.0))
    another_site, another_stat, move = Times(), Times(), Times()
    for at in range(repeat):
        item = f"document.querySelectorAll('[data-testid=sites] [role=treeitem]:not([aria-expanded])')[{at + 1}]"
        name = f"{item}.textContent"
        tab.act(f"{item}.click()", f"{has('histogram')} && {name} !== ''", another_site)
        stat = ("std", "mean", "abs_max", "rms")[at % 4]
        tab.act(choose("stat", stat), has(f"readout-{stat}"), another_stat)
        tab.act(
            "{ const plot = document.querySelector('[data-testid=histogram]'), box = plot.getBoundingClientRect();"
            " plot.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientY: box.top + 40,"
            f" clientX: box.left + 120 + {at * 40} }})); }}",
            has("crosshair-step"),
            move,
        )
    rows.append(another_site.row("another site", 0.1))
    rows.append(another_stat.row("another statistic", 0.1))
    return [*rows, move.row("crosshair moved", 0.1)]


def heat_map_at_once(tab: Measured) -> list[Row]:
    """The first one of a server just started, asked for before anybody could have read a chart."""
    took = Times()
    tab.open(address(run=RUN), has("histogram"))
    tab.act(click("Heat map"), has("heatmap"), took)
    return [took.row("heat map, asked of a server just started as soon as charts are drawn", None)]


def heat_maps(tab: Measured, repeat: int) -> list[Row]:
    first, cold, warm = Times(), Times(), Times()
    tab.page.mouse.move(5, 5)
    tab.page.wait_for_timeout(LOOK_MS)
    tab.act(click("Heat map"), has("heatmap"), first)
    for stat in ("rms", "mean", "abs_max", "min", "max", "kurtosis", "skew")[:repeat]:
        tab.act(choose("stat", stat), has("heatmap", f"[data-stat={stat}]"), cold)
    for stat in ("rms", "std") * ((repeat + 1) // 2):
        tab.act(choose("stat", stat), has("heatmap", f"[data-stat={stat}]"), warm)
    return [
        first.row("heat map of 2,000 sites × 1,000 steps, the first of the run", 0.3),
        cold.row("heat map of a statistic never asked for", 0.3),
        warm.row("heat map of a statistic that was shown before", 0.3),
    ]


def all_views(tab: Measured) -> list[Row]:
    """Every view of the long run once, so that what they leave in memory is counted."""
    graph = Times()
    tab.act(click("Graph"), has("graph"), graph)
    for name, there in (("Findings", "findings"), ("Compare", "compare"), ("Charts", "histogram")):
        tab.act(click(name), has(there), Times())
    return [graph.row("module graph of 2,000 sites", 1.0)]


def live(tab: Measured, project: Path, repeat: int) -> list[Row]:
    """Steps appended to the run that is shown."""
    tab.page.goto("about:blank")
    more = More(project)
    took = Times()
    try:
        more.append()
        tab.page.goto(f"{tab.server.address}#{address(run=RUN)}")
        tab.page.evaluate(f"settled(() => {has('histogram')})")
        for _ in range(repeat):
            cpu = tab.server.cpu_s()
            step = more.append()
            flushed = time.time()
            there = f"document.querySelector('[data-testid=last-step]').dataset.step === '{step}'"
            shown = tab.page.evaluate(f"settled(() => {there}).then(() => Date.now())") / 1e3
            took.wall_s.append(shown - flushed)
            took.cpu_s.append(tab.server.cpu_s() - cpu)
    finally:
        more.close()
    return [took.row("a new step, after the flush", 1.0)]


def traces(tab: Measured, repeat: int) -> list[Row]:
    opened = tab.open(address(run=TRACE, view="traces"), has("graph"))
    rows = [opened.row("trace of 50,000 operations, opened collapsed", 2.0)]
    again = [tab.open(address(run=TRACE, view="traces"), has("graph")) for _ in range(3)]
    rows.append(_joined(again).row("the same, opened again", 2.0))
    expand = Times()
    for at in range(repeat):
        item = "[...document.querySelectorAll('[data-testid=graph] [role=treeitem][aria-expanded=false]')]" + f"[{at}]"
        tab.page.evaluate(f"window.wanted = {item}.dataset.key")
        tab.act(
            f"{{ const item = {item}, graph = document.querySelector('[data-testid=graph]'),"
            " box = graph.getBoundingClientRect(); graph.dispatchEvent(new MouseEvent('dblclick', { bubbles: true,"
            " clientX: box.left + Number(item.dataset.x), clientY: box.top + Number(item.dataset.y) })); }",
            "document.querySelector(`[data-key='${window.wanted}']`)?.ariaExpanded === 'true'",
            expand,
        )
    return [*rows, expand.row("a module expanded", 0.15)]


def frames(tab: Measured) -> list[Row]:
    """Frames while 5,000 nodes are in sight, and while all can be read."""
    stages = ".".join(str(part) for part in _stages(tab))
    tab.open(address(run=TRACE, view="traces", opened=stages), has("graph"))
    tab.page.get_by_role("button", name="Fit").click()
    tab.page.evaluate("frame().then(frame)")
    rows = []
    for kind in ("pan", "zoom"):
        tab.page.evaluate(FRAMES, kind)
        times = sorted(tab.page.evaluate(FRAMES, kind))
        middle, late = times[len(times) // 2], times[int(len(times) * 0.95)]
        measured = f"{middle:.1f} ms, 95 % within {late:.1f} ms"
        rows.append(
            row(f"{kind}, 5,000 nodes in sight: a frame", measured, f"{FRAME_MS:.1f} ms", kept=late <= FRAME_MS)
        )
    return rows


def _stages(tab: Measured) -> list[int]:
    """The parts of the graph to open so that the blocks of all stages are in sight."""
    tab.open(address(run=TRACE, view="traces"), has("graph"))
    found = tab.page.evaluate(
        "[...document.querySelectorAll('[data-testid=graph] [role=treeitem][aria-expanded]')].map((e) => e.id)"
    )
    return [0, *(int(name.removeprefix("node-")) for name in found)][: STAGES + 2]


def memory(tab: Measured) -> list[Row]:
    session = tab.page.context.browser.new_browser_cdp_session()  # type: ignore[union-attr]
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    own = max(memory_of(each["id"])["VmRSS"] for each in found if each["type"] == "renderer")
    heap = tab.page.evaluate("performance.memory.usedJSHeapSize")
    server = tab.server.memory()
    split = f"{server['RssAnon'] / MB:.0f} own, {server['RssFile'] / MB:.0f} of mapped files"
    return [
        row("memory of the tab", f"{own / MB:.0f} MB, heap {heap / MB:.0f} MB", "500 MB", kept=own <= 500 * MB),
        row(
            "memory of the server after all views",
            f"{server['VmRSS'] / MB:.0f} MB ({split})",
            "300 MB",
            kept=server["VmRSS"] <= 300 * MB,
        ),
    ]


def bundle() -> list[Row]:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    size = sum(len(gzip.compress(path.read_bytes())) for path in files)
    return [row("the page's files, gzip", f"{size / 1e3:.0f} kB", "400 kB", kept=size <= 400_000)]


def _joined(several: list[Times]) -> Times:
    return Times([t for each in several for t in each.wall_s], [t for each in several for t in each.cpu_s])


def measure(project: Path, repeat: int) -> list[Row]:
    rows = bundle()
    with sync_playwright() as playwright:
        flags = [*FLAGS, "--enable-precise-memory-info"]
        browser = playwright.chromium.launch(executable_path=chromium(), args=flags)
        with served(project) as server:
            tab = Measured(browser, server)
            parts: list[Callable[[], list[Row]]] = [
                lambda: charts(tab, repeat),
                lambda: heat_maps(tab, repeat),
                lambda: all_views(tab),
                lambda: live(tab, project, repeat),
                lambda: traces(tab, repeat),
                lambda: frames(tab),
                lambda: memory(tab),
            ]
            for part in parts:
                rows += shown(part())
        with served(project) as server:
            rows += shown(heat_map_at_once(Measured(browser, server)))
        browser.close()
    return rows


def shown(rows: list[Row]) -> list[Row]:
    for line in rows:
        print(f"{line['what']:<72} {line['measured']:>45} {line['limit']:>9} {line['kept']}", flush=True)
    return rows


def main(about: str | None, holds: str, make: Callable[[Path], object], measure: Measure) -> None:
    """What a command of a benchmark does: measure a project, which is made unless it holds a run of that name."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--project", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project: Path = options.project or Path(folder)
        if not (project / holds).is_dir():
            make(project)
        rows = measure(project, options.repeat)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(__doc__, TRACE, make, measure)
