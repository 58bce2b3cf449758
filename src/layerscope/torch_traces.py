"""Running a PyTorch model or function under the tracer, and giving what was seen as a `Trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.capture.torch.trace.describe import describe
from layerscope.capture.torch.trace.edits import Edits, LiveEditor, When, rerun
from layerscope.capture.torch.trace.gaps import Repeat
from layerscope.capture.torch.trace.op_recorder import Change
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.capture.torch.trace.validate import ValidationReport, validate
from layerscope.errors import StateError
from layerscope.model.trace_record import TraceRecord
from layerscope.query.trace_tables import Selector
from layerscope.traces import Edit, Trace

Save = Selector | Iterable[Selector] | None
EditWhile = Mapping[When, Change | Tensor]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a pass is traced."""

    save: Save = "all"  # "all", None, or what to keep: any key of the trace, a substring, a glob, a function
    seed: int | None = None  # set for the pass, and the random state restored after it
    open_composites: bool = False  # show `einsum` and its like as the calls they make
    edits: EditWhile | None = None  # replacements of the results of some operations


def traced_call(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TraceOptions
) -> Trace:
    """The trace of one call. An error of the call is raised with the trace so far as its `layerscope_trace`."""
    with tracing(target, options) as trace:
        live = trace.engine
        assert isinstance(live, _LivePass)
        live.repeat = Repeat(target, args, kwargs)
        trace.output = live.repeat.call(live.tracer)
    return trace


@contextmanager
def tracing(target: object, options: TraceOptions) -> Iterator[Trace]:
    """Record every torch call of the block."""
    model = target if isinstance(target, nn.Module) else None
    name = "nothing" if target is None else str(getattr(target, "__name__", type(target).__name__))
    tracer = Tracer(model, keep=options.save is not None, open_composites=options.open_composites)
    editor = tracer.ops.editor = LiveEditor(tracer.graph, options.edits) if options.edits else None
    live = _LivePass(tracer, name if model is None else type(model).__name__, options)
    trace = Trace(live.record, tracer.graph.memory.values, gradients=tracer.graph.gradients, engine=live)
    with torch.random.fork_rng(devices=[], enabled=options.seed is not None):
        if options.seed is not None:
            torch.manual_seed(options.seed)
        try:
            with tracer:
                yield trace
        except Exception as error:
            where = tracer.failing_call(error)
            live.failure = f"{type(error).__name__}: {error}{f' (in {where})' if where else ''}"
            error.layerscope_trace = trace  # type: ignore[attr-defined]  # the way L11 hands the partial trace over
            raise
        finally:
            live.finished = True
    if editor is not None:
        editor.check_all_met()
    _drop_unwanted(trace, options.save)


def _drop_unwanted(trace: Trace, save: Save) -> None:
    """Let go of values that were not asked for: only after the pass is it known what every operation is called."""
    if save is None or save == "all":
        return
    selectors = [save] if isinstance(save, (str, int)) or callable(save) else list(save)
    wanted = set(trace.lookup.many(selectors))
    values = trace.values
    assert isinstance(values, dict)
    for index in [index for index in values if index not in wanted]:
        del values[index]


class _LivePass:
    """The torch side of a trace: describes it once it is finished, replays it, runs it again."""

    def __init__(self, tracer: Tracer, name: str, options: TraceOptions) -> None:
        self.tracer = tracer
        self.repeat: Repeat | None = None
        self.failure: str | None = None
        self.finished = False
        self._name = name
        self._options = options

    def record(self) -> TraceRecord:
        if not self.finished:
            raise StateError("The pass is still being recorded. Look at the trace after the block.")
        return describe(self.tracer, self._name, self._options.seed, self.failure)

    def random_state(self, operation: int) -> Tensor | None:
        return self.tracer.graph.nodes[operation].random_state

    def validate(self, record: TraceRecord, *, rerun: bool | None) -> ValidationReport:
        return validate(self.tracer, record, self.repeat, rerun=rerun)

    def rerun(
        self, edits: Mapping[int, Edit], functions: Mapping[int, Edit], parameters: Mapping[str, Tensor]
    ) -> Trace:
        if self.repeat is None:
            raise StateError("A block cannot be run again: only a trace made by trace() knows what was called.")
        again, output = rerun(self.tracer, self.repeat.call, Edits(edits, functions, parameters))
        live = _LivePass(again, self._name, self._options)
        live.repeat, live.finished = self.repeat, True
        return Trace(
            live.record, again.graph.memory.values, gradients=again.graph.gradients, output=output, engine=live
        )
