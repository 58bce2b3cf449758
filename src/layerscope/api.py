"""The verbs of the package: the only module that knows all the pieces."""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from layerscope.capture.core.named_tensors import attach_listeners
from layerscope.errors import ArgumentError, LayerscopeWarning, MissingError, SelectError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from layerscope.capture.core.named_tensors import Detail
    from layerscope.capture.core.recorder import Opened, Recorder, When
    from layerscope.capture.core.schedule import Every, KeepIf
    from layerscope.capture.torch.summarizer import StatisticsFunction, SummaryOptions
    from layerscope.capture.torch.targets import Choices, WatchSelection
    from layerscope.runs import Run
    from layerscope.torch_traces import EditWhile, Save
    from layerscope.traces import ModelSummary, Trace

DEFAULT_KINDS = ("output", "weight", "weight_grad", "tensor", "tensor_grad")
PROJECT = Path("runs")  # where runs go, and are looked for, when nothing is said


def watch(  # noqa: PLR0913  the one verb that takes everything about a recording
    model: nn.Module | Mapping[str, nn.Module] | None,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    *,
    to: str | Path | None = None,
    every: Every = 10,
    kinds: Choices = DEFAULT_KINDS,
    sites: Choices = "*",
    exclude: Choices = (),
    keep_if: KeepIf | None = None,
    budget: float | None = None,
    sample: int | None = None,
    statistics: StatisticsFunction | None = None,
    resume: bool | int = False,
    detail: str | Detail = "samples",
    keep_last: int = 0,
    enabled: bool = True,
) -> Recorder:
    """A recorder of the model's training: call its `step(loss=…)` after every optimizer step.

    `to` is the run's folder, by default a new one under `runs/`; a taken name gets a suffix, unless `resume` says that
    the run goes on: True after its last step, a number at that step, such as a checkpoint's. `every` is a number of
    steps or a `Schedule`; `keep_if` a function that says at the end of any other step whether it is kept after all:
    `lambda step: step.loss > 3 * step.loss_ema`. `budget=0.02` leaves out steps so that recording takes at most 2 % of
    the time. `kinds` chooses what is recorded, `"all"` or some of them; `sites` and `exclude` choose where: by name,
    glob, compiled regular expression or module class. `sample=1_000_000` counts of larger tensors only so many
    elements, evenly spread; `statistics` is a function of your own from a tensor to named numbers. The optimizer is
    found by itself when none is given. Nothing of the model, its gradients or the random state is changed.

    Several models are watched together by their names: `watch({"generator": g, "discriminator": d}, [opt_g, opt_d])`.
    Without a model, only what the loop itself names with `record()` is recorded. `every` may be a dict, from types of
    steps (`begin(type=…)`; globs) to numbers or schedules. `detail` is how much is kept of named tensors. `keep_last`
    is how many ended steps stay in memory, so that `keep()` may decide late. With `enabled=False` nothing is recorded
    and no folder is made until `run.enabled = True`.
    """
    from layerscope.capture.core.recorder import disabled

    if os.environ.get("LAYERSCOPE_DISABLED", "") not in ("", "0"):
        return disabled(int(resume) if resume is not True else 0)
    _need_torch("watch()")
    from layerscope.capture.core.named_tensors import Detail
    from layerscope.capture.core.recorder import Recorder, When
    from layerscope.capture.core.schedule import Budget, Keeping
    from layerscope.capture.torch.listener import progress
    from layerscope.capture.torch.summarizer import SummaryOptions
    from layerscope.capture.torch.targets import choose

    selection = choose(model, optimizer, kinds, sites, exclude)
    chosen_detail = detail if isinstance(detail, Detail) else Detail(detail)
    if resume is not False and to is None:
        raise ArgumentError("resume needs `to`: the folder of the run that goes on.")
    folder = Path(to) if to is not None else PROJECT / _new_name(model)
    when = When(every, Budget(budget), Keeping(keep_if), keep_last, chosen_detail)
    extent = SummaryOptions(sample, statistics)

    def open(recorder: weakref.ref[Recorder]) -> Opened:
        return _opened(recorder, selection, when, extent, (folder, resume))

    return Recorder(open, when, progress, 0 if resume is True else int(resume), enabled=enabled)


def _opened(
    recorder: weakref.ref[Recorder],
    selection: WatchSelection,
    when: When,
    extent: SummaryOptions,
    where: tuple[Path, bool | int],
) -> Opened:
    """The run's folder, opened; whatever goes wrong, no thread and no lock is left behind."""
    from layerscope.capture.core.recorder import Opened
    from layerscope.capture.torch.listener import listener
    from layerscope.store.folder import create
    from layerscope.store.writer import FolderSink

    folder, resume = where
    sink = FolderSink(create(folder, resume=resume is not False))
    path = sink.run.path
    try:
        first_step = 0 if resume is False else _next_step(path) if resume is True else resume
        listening = listener(selection, when, sink, extent, recorder)
    except BaseException:
        sink.close()
        raise
    if path.name != folder.name:
        warnings.warn(f"{folder} is taken: this run is recorded to {path}.", LayerscopeWarning, stacklevel=7)
    return Opened(sink, listening, first_step, path, selection.models)


_Tensor = TypeVar("_Tensor")


def attach(name: str, tensor: _Tensor) -> _Tensor:
    """Name a tensor inside a forward; returns the tensor unchanged.

    While a recorder watches the model, it records the tensor and its gradient under the module that is running:
    `scores = ls.attach("scores", q @ k.mT)`. At any other time the call does nothing.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"attach(name, tensor) takes the name first, got {type(name).__name__} as the name.")
    for hear in attach_listeners.listeners:
        hear(tensor, name)
    return tensor


def _need_torch(call: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingError(f"{call} needs PyTorch, which is not installed: see https://pytorch.org/get-started.")


def _new_name(model: object) -> str:
    word = "run" if model is None or isinstance(model, Mapping) else type(model).__name__.lower()
    return f"{word}-{time.strftime('%Y%m%d-%H%M%S')}"


def _next_step(folder: Path) -> int:
    """The step a resumed run goes on with."""
    from layerscope.store.reader import Reader

    last = Reader(folder).last_step
    return 0 if last is None else last + 1


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
    from layerscope.torch_traces import TraceOptions, traced_call

    return traced_call(model, inputs, named_inputs, TraceOptions(save=save, seed=seed))


def tracing(
    model: nn.Module | None = None,
    *,
    save: Save = "all",
    seed: int | None = None,
    open_composites: bool = False,
    edit: EditWhile | None = None,
) -> AbstractContextManager[Trace]:
    """A `with` block in which every torch operation of this thread is recorded, backward passes included.

    `model` gives modules and parameters their names, and its calls inputs and outputs. `open_composites` shows Python
    functions such as `einsum` or `multi_head_attention_forward` as the operations they are made of. `edit` maps
    operations, by function (`"relu"`), module path or glob (`"features.*"`) or a function of what is known of them
    while they run, to a function of their result, or to the tensor to put in its place; the pass goes on with that.
    """
    _need_torch("tracing()")
    from layerscope.torch_traces import TraceOptions
    from layerscope.torch_traces import tracing as traced_block

    return traced_block(model, TraceOptions(save, seed, open_composites, edit))


def draw(model: Callable[..., Any], *inputs: Any, to: str | Path | None = None, **options: Any) -> str:
    """The graph of `model(*inputs)` as SVG, also written to a `.svg`, `.png` or `.dot` file; options: `Trace.draw`."""
    return trace(model, *inputs, save=None).draw(to, **options)


def summary(model: nn.Module, *inputs: Any, **named_inputs: Any) -> ModelSummary:
    """The modules of a model as a table: output shapes, parameters, FLOPs, from one pass with the inputs."""
    from layerscope.traces import ModelSummary

    return ModelSummary(trace(model, *inputs, save=None, **named_inputs).record)


def open(path: str | Path) -> Run:
    """The run in a folder, finished or still being written."""
    from layerscope.runs import Run

    return Run(path)


def ui(runs: str | Path = PROJECT, *, port: int = 8765, open_browser: bool = True) -> None:
    """Serve the page on one run or a folder of runs until interrupted."""
    from layerscope.server.serve import serve

    serve(Path(runs), port=port, open_browser=open_browser)
