"""The verbs of the package: the only module that knows all the pieces."""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from layerscope.capture.core.named_tensors import attach_listeners
from layerscope.errors import ArgumentError, LayerscopeWarning, MissingError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from layerscope.capture.core.named_tensors import Detail
    from layerscope.capture.core.recorder import Recorder
    from layerscope.capture.core.schedule import Every, Schedule
    from layerscope.capture.core.summarizer import StatisticsFunction, SummaryOptions
    from layerscope.capture.torch.targets import Choices, WatchSelection
    from layerscope.model.records import ExtraSink
    from layerscope.runs import Run
    from layerscope.store.writer import FolderSink
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
    detail: str | Detail = "samples",
    statistics: StatisticsFunction | None = None,
    sample: int | None = None,
    also: Iterable[ExtraSink] = (),
    resume: bool | int = False,
    enabled: bool = True,
) -> Recorder:
    """Record the training of a model; call `run.step(loss=loss)` after every optimizer step.

        with ls.watch(model, optimizer, to="runs/first") as run:
            for x, y in loader:
                ...
                run.step(loss=loss)

    Watching changes neither the model, nor its gradients, nor the random state.

    `model`: a module, or several by name, `{"generator": g, "discriminator": d}`. None records only the tensors
    that the loop names with `run.record()`.
    `optimizer`: one or several; by default those that update the parameters.
    `to`: the run's folder, by default a new one under `runs/`. If the folder exists, the run gets a suffix.
    `every`: every n-th step is recorded. A dict gives a number for each step type (`run.begin(type=…)`). A
    `Schedule` says everything else about when: start and stop, rules, a time budget, steps kept after they ended.
    `kinds`: which tensors, such as `("output", "input_grad")`, or `"all"`.
    `sites`, `exclude`: where, by name, glob, compiled regular expression or module class.
    `detail`: how much is kept of tensors named with `run.record()`: `"summary"`, `"statistics"`, `"samples"`,
    `"all"`, or a `Detail`.
    `statistics`: a function from a tensor to a dict of custom statistics.
    `sample`: summarizes at most this many elements of a tensor, evenly spread.
    `also`: further sinks that receive the same records: objects with `write(records)` and `close()`.
    `resume`: True continues the run in `to` after its last step, a number continues it at that step.
    `enabled`: False records nothing and makes no folder until `run.enabled = True`.
    """
    from layerscope.capture.core.recorder import disabled

    if os.environ.get("LAYERSCOPE_DISABLED", "") not in ("", "0"):
        return disabled(int(resume) if resume is not True else 0)
    _need_torch("watch()")
    from layerscope.capture.core.named_tensors import Detail
    from layerscope.capture.core.schedule import schedule_of
    from layerscope.capture.core.summarizer import SummaryOptions
    from layerscope.capture.torch.targets import choose

    selection = choose(model, optimizer, kinds, sites, exclude)
    if resume is not False and to is None:
        raise ArgumentError("resume needs `to`: the folder of the run to continue.")
    target = _Target(Path(to) if to is not None else PROJECT / _new_name(model), resume, _checked_sinks(also))
    how_much = detail if isinstance(detail, Detail) else Detail(detail)
    options = SummaryOptions(sample, statistics)
    return _recorder(selection, schedule_of(every), how_much, options, target, enabled=enabled)


class _Target(NamedTuple):
    """Where a recorder writes."""

    folder: Path
    resume: bool | int
    also: tuple[ExtraSink, ...]

    def open(self) -> FolderSink:
        """The run's folder, opened to write."""
        from layerscope.store.folder import create
        from layerscope.store.writer import FolderSink

        sink = FolderSink(create(self.folder, resume=self.resume is not False), also=self.also)
        if sink.run.path.name != self.folder.name:
            text = f"{self.folder} exists: this run is recorded to {sink.run.path}."
            warnings.warn(text, LayerscopeWarning, stacklevel=9)
        return sink


def _checked_sinks(also: Iterable[ExtraSink]) -> tuple[ExtraSink, ...]:
    sinks = tuple(also) if isinstance(also, Iterable) else (also,)
    for sink in sinks:
        if not all(callable(getattr(sink, method, None)) for method in ("write", "close")):
            raise ArgumentError(f"also=[{sink!r}] is not a sink: it needs the methods write(records) and close().")
    return sinks


def _recorder(
    selection: WatchSelection,
    schedule: Schedule,
    detail: Detail,
    options: SummaryOptions,
    target: _Target,
    *,
    enabled: bool,
) -> Recorder:
    """A recorder that opens its folder when it is first enabled."""
    from layerscope.capture.core.recorder import Opened, Recorder
    from layerscope.capture.torch.listener import listener, progress

    def open(recorder: weakref.ref[Recorder]) -> Opened:
        sink = target.open()
        try:
            first_step = _next_step(sink.run.path) if target.resume is True else int(target.resume)
            listening = listener(selection, schedule, detail, sink, options, recorder)
        except BaseException:  # neither a thread nor a lock may stay
            sink.close()
            raise
        return Opened(sink, listening, first_step, sink.run.path, selection.models)

    first_step = 0 if target.resume is True else int(target.resume)
    return Recorder(open, schedule, detail, progress, first_step, enabled=enabled)


_Tensor = TypeVar("_Tensor")


def attach(name: str, tensor: _Tensor) -> _Tensor:
    """Name a tensor inside a forward; returns the tensor unchanged.

    While a recorder watches the model, it records the tensor and its gradient under the module that is running:
    `scores = ls.attach("scores", q @ k.mT)`. At any other time the call does nothing.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"attach(name, tensor) takes the name first, got {type(name).__name__} as the name.")
    for listen in attach_listeners.listeners:
        listen(tensor, name)
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
    """Call `model(*inputs, **named_inputs)` once and record every operation; `trace.output` is the result.

    `save` says which values are kept: `"all"`, None, or a key of the trace, a substring, a glob, a function of the
    operation's record, or a list of them. `seed` is set for the call, and the random state restored after it. The
    result, its gradients and the model are those of a plain call. If the model raises, the error has the trace until
    then as `layerscope_trace`. `tracing` has further options.
    """
    _need_torch("trace()")
    if not callable(model):
        raise ArgumentError(f"trace() needs a model or function to call, not {type(model).__name__}: trace(model, x).")
    from layerscope.torch_traces import TraceOptions, traced_call

    return traced_call(model, inputs, named_inputs, TraceOptions(save=save, seed=seed))


def tracing(
    model: nn.Module | None = None,
    *,
    save: Save = "all",
    seed: int | None = None,
    open_composites: bool = False,
    edits: EditWhile | None = None,
) -> AbstractContextManager[Trace]:
    """Record every torch operation of this thread in a `with` block, backward passes included.

    `model` gives modules and parameters their names, and its calls inputs and outputs. `open_composites` shows Python
    functions such as `einsum` or `multi_head_attention_forward` as the operations they are made of. `edits` maps
    operations to a function of their result, or to a tensor that replaces it; the pass continues with that. Keys are
    a function's name (`"relu"`), a module path or glob (`"features.*"`), or a predicate of the running operation.
    """
    _need_torch("tracing()")
    from layerscope.torch_traces import TraceOptions
    from layerscope.torch_traces import tracing as traced_block

    return traced_block(model, TraceOptions(save, seed, open_composites, edits))


def draw(  # noqa: PLR0913  the options of a drawing
    model: Callable[..., Any],
    *inputs: Any,
    to: str | Path | None = None,
    depth: int | None = None,
    rolled: bool = True,
    focus: str | None = None,
    color_by: str | Mapping[int, float] | None = None,
    expanded: Collection[str] = (),
) -> str:
    """Draw the graph of `model(*inputs)`; returns SVG text, and writes it to `to`: `.svg`, `.png` or `.dot`.

    `depth`, `rolled`, `focus`, `color_by` and `expanded` are those of `Trace.draw`.
    """
    traced = trace(model, *inputs, save=None)
    return traced.draw(to, depth=depth, rolled=rolled, focus=focus, color_by=color_by, expanded=expanded)


def summary(model: nn.Module, *inputs: Any, **named_inputs: Any) -> ModelSummary:
    """List the modules of a model with output shapes, parameters and FLOPs, from one pass with the inputs."""
    from layerscope.traces import ModelSummary

    return ModelSummary(trace(model, *inputs, save=None, **named_inputs).record)


def open(path: str | Path) -> Run:
    """Open the run in a folder, finished or still being written."""
    from layerscope.runs import Run

    return Run(path)


def ui(runs: str | Path = PROJECT, *, port: int = 8765, open_browser: bool = True) -> None:
    """Serve the page on one run or a folder of runs until interrupted."""
    from layerscope.server.serve import serve

    serve(Path(runs), port=port, open_browser=open_browser)
