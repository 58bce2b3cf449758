"""The verbs of the package: the only module that knows all the pieces."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from layerscope.capture.schedule import Schedule
from layerscope.errors import MissingError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from layerscope.capture.recorder import Recorder
    from layerscope.query.run import Run
    from layerscope.select import Patterns

DEFAULT_KINDS = ("output", "weight", "weight_grad")
PROJECT = Path("runs")  # where runs go, and are looked for, when nothing is said


def watch(  # noqa: PLR0913  the one verb that takes everything about a recording
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    to: str | Path | None = None,
    every: int | Schedule = 10,
    kinds: Patterns = DEFAULT_KINDS,
    sites: Patterns = "*",
    resume: bool = False,
) -> Recorder:
    """A recorder of the model's training: call its `step(loss=…)` after every optimizer step.

    `to` is the run's folder, by default a new one under `runs/`; a taken name gets a suffix, unless `resume` says that
    the run goes on. `every` is a number of steps or a `Schedule`. `kinds` and `sites` choose, by name or glob, what
    is recorded; the optimizer is found by itself when none is given. Nothing of the model, its
    gradients or the random state is changed.
    """
    if os.environ.get("LAYERSCOPE_DISABLED", "") not in ("", "0"):
        from layerscope.capture.recorder import DisabledRecorder

        return DisabledRecorder()
    if importlib.util.find_spec("torch") is None:
        raise MissingError("watch() needs PyTorch, which is not installed: see https://pytorch.org/get-started.")
    from layerscope.capture.torch.targets import choose
    from layerscope.capture.torch.watching import record
    from layerscope.store.folder import create
    from layerscope.store.writer import FolderSink

    targets = choose(model, optimizer, kinds, sites)
    schedule = every if isinstance(every, Schedule) else Schedule(every=every)
    run = create(Path(to) if to is not None else PROJECT / _new_name(model), resume=resume)
    return record(targets, schedule, FolderSink(run), _next_step(run.path) if resume else 0)


def _new_name(model: object) -> str:
    return f"{type(model).__name__.lower()}-{time.strftime('%Y%m%d-%H%M%S')}"


def _next_step(folder: Path) -> int:
    """The step a resumed run goes on with."""
    from layerscope.store.reader import Reader

    reader = Reader(folder)
    tables = (reader.kpis(), reader.moments(columns=[]), reader.events())
    return 1 + max((int(table.column("step").to_numpy().max(initial=-1)) for table in tables), default=-1)


def open(path: str | Path) -> Run:
    """The run in a folder, finished or still being written."""
    from layerscope.query.run import Run

    return Run(path)


def ui(runs: str | Path = PROJECT, *, port: int = 8765, open_browser: bool = True) -> None:
    """Serve the page on one run or a folder of runs until interrupted."""
    from layerscope.server.serve import serve

    serve(Path(runs), port=port, open_browser=open_browser)
