"""The verbs of the package: the only module that knows all the pieces."""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerscope.capture.schedule import Schedule
from layerscope.errors import LayerscopeWarning, MissingError, SelectError, StateError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from layerscope.capture.recorder import Recorder
    from layerscope.capture.torch.targets import Selection
    from layerscope.passes import Save
    from layerscope.recorded import Run
    from layerscope.select import Patterns
    from layerscope.summarised import Summary
    from layerscope.traced import Trace

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
    resume: bool | int = False,
) -> Recorder:
    """A recorder of the model's training: call its `step(loss=…)` after every optimizer step.

    `to` is the run's folder, by default a new one under `runs/`; a taken name gets a suffix, unless `resume` says that
    the run goes on: True after its last step, a number at that step, such as a checkpoint's. `every` is a number of
    steps or a `Schedule`. `kinds` and `sites` choose, by name or glob, what is recorded; the optimizer is found by
    itself when none is given. Nothing of the model, its gradients or the random state is changed.
    """
    if os.environ.get("LAYERSCOPE_DISABLED", "") not in ("", "0"):
        from layerscope.capture.recorder import DisabledRecorder

        return DisabledRecorder()
    _need_torch("watch()")
    from layerscope.capture.torch.targets import choose

    selection = choose(model, optimizer, kinds, sites)
    schedule = every if isinstance(every, Schedule) else Schedule(every=every)
    if resume is not False and to is None:
        raise StateError("resume needs `to`: the folder of the run that goes on.")
    return _recorder(selection, schedule, Path(to) if to is not None else PROJECT / _new_name(model), resume)


def _recorder(selection: Selection, schedule: Schedule, folder: Path, resume: bool | int) -> Recorder:  # noqa: FBT001
    """A recorder into the folder; whatever goes wrong, no thread and no lock is left behind."""
    from layerscope.capture.torch.watching import record
    from layerscope.store.folder import create
    from layerscope.store.writer import FolderSink

    sink = FolderSink(create(folder, resume=resume is not False))
    path = sink.run.path
    try:
        first_step = 0 if resume is False else _next_step(path) if resume is True else resume
        recorder = record(selection, schedule, sink, first_step)
    except BaseException:
        sink.close()
        raise
    recorder.path = path
    if path.name != folder.name:
        warnings.warn(f"{folder} is taken: this run is recorded to {path}.", LayerscopeWarning, stacklevel=3)
    return recorder


def _need_torch(call: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingError(f"{call} needs PyTorch, which is not installed: see https://pytorch.org/get-started.")


def _new_name(model: object) -> str:
    return f"{type(model).__name__.lower()}-{time.strftime('%Y%m%d-%H%M%S')}"


def _next_step(folder: Path) -> int:
    """The step a resumed run goes on with."""
    from layerscope.store.reader import Reader

    reader = Reader(folder)
    tables = (reader.kpis(), reader.moments(columns=[]), reader.events())
    return 1 + max((int(table.column("step").to_numpy().max(initial=-1)) for table in tables), default=-1)


def trace(
    model: Callable[..., Any], *inputs: Any, save: Save = "all", seed: int | None = None, **named_inputs: Any
) -> Trace:
    """Every operation of one pass: `model(*inputs, **named_inputs)` is called once, and `trace.output` is what it gave.

    `save` says which values are kept: `"all"`, None, or any key of the trace, a substring, a glob, a function of the
    operation's record, or a list of them. `seed` is set for the pass, and the random state restored after it. The
    result of the call, its gradients and the model are those of a plain call. An error of the model is raised with
    the trace so far as its `layerscope_trace`. Further options: `tracing`.
    """
    _need_torch("trace()")
    if not callable(model):
        raise SelectError(f"trace() needs a model or function to call, not {type(model).__name__}: trace(model, x).")
    from layerscope.passes import PassOptions, traced_call

    return traced_call(model, inputs, named_inputs, PassOptions(save=save, seed=seed))


def tracing(
    model: nn.Module | None = None, *, save: Save = "all", seed: int | None = None, open_composites: bool = False
) -> AbstractContextManager[Trace]:
    """A `with` block in which every torch operation of this thread is recorded, backward passes included.

    `model` gives modules and parameters their names, and its calls inputs and outputs. `open_composites` shows Python
    functions such as `einsum` or `multi_head_attention_forward` as the operations they are made of.
    """
    _need_torch("tracing()")
    from layerscope.passes import PassOptions
    from layerscope.passes import tracing as traced_block

    return traced_block(model, PassOptions(save=save, seed=seed, open_composites=open_composites))


def draw(model: Callable[..., Any], *inputs: Any, to: str | Path | None = None, **options: Any) -> str:
    """The graph of `model(*inputs)` as SVG, also written to a `.svg`, `.png` or `.dot` file; options: `Trace.draw`."""
    return trace(model, *inputs, save=None).draw(to, **options)


def summary(model: nn.Module, *inputs: Any, **named_inputs: Any) -> Summary:
    """The modules of a model as a table: output shapes, parameters, FLOPs, from one pass with the inputs."""
    from layerscope.summarised import Summary

    return Summary(trace(model, *inputs, save=None, **named_inputs).record)


def open(path: str | Path) -> Run:
    """The run in a folder, finished or still being written."""
    from layerscope.recorded import Run

    return Run(path)


def ui(runs: str | Path = PROJECT, *, port: int = 8765, open_browser: bool = True) -> None:
    """Serve the page on one run or a folder of runs until interrupted."""
    from layerscope.server.serve import serve

    serve(Path(runs), port=port, open_browser=open_browser)
