"""How fast the view of named tensors answers: real Chromium, a real server, the demo of the tutorial.

python -m benchmarks.page_tensors [--json PATH] [--repeat 7] [--project FOLDER]

A time ends with the first frame that shows what was chosen. FOLDER keeps the demo's two trials for the next time.
"""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import sync_playwright

import layerscope
from benchmarks.page import Measured, Row, Times, address, choose, main, served, shown
from layerscope.demos import recurrent_bug
from tests.browser.conftest import FLAGS, chromium

START = {"run": "bugged", "view": "tensors", "type": "10_iterations", "node": "before_sigmoid"}
SELECTORS = {  # what is chosen in turn, so that each is another than the one before
    "node": ("memory", "output", "seen", "last_layer", "before_sigmoid"),
    "iteration": ("3", "7", "9", "5"),
    "sample": ("0", "2", "4", ""),
    "what": ("∇", "value"),
    "type": ("05_iterations", "08_iterations", "10_iterations"),
}
WORDS = {"what": "gradient instead of value, and back"}
SHOWN = "document.querySelector('[data-testid=tensors]').dataset.busy === 'false'"


def measure(project: Path, repeat: int) -> list[Row]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        with served(project) as server:
            tab = Measured(browser, server)
            tab.open(address(**START), f"document.querySelector('[data-testid=panel]') !== null && {SHOWN}")
            steps = layerscope.open(project / START["run"]).named().steps(START["type"])["step"]
            choices = {"step": tuple(str(each) for each in steps[-5:-1]), **SELECTORS}
            rows = [
                chosen(tab, name, values, repeat).row(WORDS.get(name, f"another {name}"), 0.1)
                for name, values in choices.items()
            ]
            rows.append(chosen(tab, "trial", ("fixed", "bugged"), repeat).row("another trial", 0.2))
        browser.close()
    return rows


def chosen(tab: Measured, selector: str, values: tuple[str, ...], repeat: int) -> Times:
    """What it took to see each of the choices, again and again."""
    times = Times()
    for _ in range(repeat):
        for value in values:
            tab.act(choose(selector, value), f"{SHOWN} && {_value(selector)} === '{value}'", times)
    return times


def _value(selector: str) -> str:
    return f"document.querySelector('[data-testid={selector}]').value"


def make(project: Path) -> None:
    recurrent_bug.train(project, recurrent_bug.STEPS, lambda steps, _: steps)


if __name__ == "__main__":
    main(__doc__, START["run"], make, lambda project, repeat: shown(measure(project, repeat)))
