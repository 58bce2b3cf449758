"""`layerscope demo`: a small training with something to find in it, and the page on it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from rich.progress import Progress

from layerscope.cli.output import console
from layerscope.errors import MissingError
from layerscope.server.aside import compact_aside
from layerscope.server.serve import PageServer, announce, open_page

VIEW = Path(__file__).parents[1] / "demos" / "recurrent_view.py"


class Train(Protocol):
    """A training that records itself into a folder."""

    def __call__(self, to: Path, steps: int, track: Callable[[range, str], Iterable[int]]) -> None:
        """Train; `track` shows how far it is."""
        ...


class Demo(NamedTuple):
    """What one of the demos needs."""

    train: Train
    steps: int
    to: Path
    project: Path  # the folder the page shows
    view: Path | None = None


def demo(options: argparse.Namespace) -> None:
    """Train with the page open, then keep serving it until interrupted."""
    chosen = _chosen(options.name, options.to)
    chosen.project.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if not options.no_serve:
            server = PageServer(
                chosen.project,
                host=options.host,
                port=options.port,
                compactor=compact_aside,
                view=chosen.view,
            )
            stack.enter_context(server)
            announce(server.address)
            if not options.no_browser:
                open_page(server.address)
        _train(chosen, options.steps or chosen.steps)
        if not options.no_serve:
            server.wait()


def _chosen(name: str, to: Path | None) -> Demo:
    if importlib.util.find_spec("torch") is None:
        raise MissingError("The demo trains with PyTorch, which is not installed: run `pip install torch`.")
    if name == "recurrent-bug":
        from layerscope.demos import recurrent_bug

        folder = to or Path("runs/recurrent-bug")
        return Demo(recurrent_bug.train, recurrent_bug.STEPS, folder, folder, VIEW)
    from layerscope.demos import spirals

    folder = to or Path("runs/demo")
    return Demo(spirals.train, spirals.STEPS, folder, folder.parent)


def _train(chosen: Demo, steps: int) -> None:
    with Progress(console=console()) as progress:
        chosen.train(chosen.to, steps, lambda counted, what: progress.track(counted, description=what))
    again = f"layerscope ui {chosen.project}" + (f" --view {chosen.view}" if chosen.view else "")
    is_project = chosen.to == chosen.project
    said = f"The runs are in {chosen.to}" if is_project else f"The run is in {chosen.to}"
    console().print(f"{said}. Look again with: {again}", markup=False)
