"""Reading the tensors that a training loop names, and their gradients, as deep as is asked for."""

from __future__ import annotations

import threading
from typing import Any

from layerscope.capture.core.contexts import Contexts
from layerscope.capture.core.dependencies import DependencyCache, DependencyTracer, NamedSubgraph
from layerscope.capture.core.framework import Selection, Tensor
from layerscope.capture.core.gradients import Contributions, GradientReader
from layerscope.capture.core.guard import ListenerGuard
from layerscope.capture.core.named_tensors import Detail, NamedSummary, NamedTensor, StepData, checked, level_of
from layerscope.capture.core.named_values import NamedRecords, NamedTensorSummarizer
from layerscope.capture.core.summarizer import SeriesKey
from layerscope.errors import ArgumentError, SelectError, StateError
from layerscope.model.records import STEP_TYPE, Kind, Mode, Phase, TensorType, call_site, gradient_port

_SHARDS = (
    "What each loss adds to the gradients of sharded parameters is not recorded: FSDP adds the gradients up elsewhere. "
    "Their gradients of all losses together are."
)


class NamedReader:
    """Reads what is named in the step in progress; `begin` one, `finish` it, or `start_over`."""

    def __init__(
        self,
        gradients: GradientReader,
        guard: ListenerGuard,
        selection: Selection,
        contexts: Contexts,
        detail: Detail,
        *,
        holds: bool,
    ) -> None:
        self._gradients = gradients
        self._contexts = contexts
        self._summarizer = gradients.summarizer
        self._framework = gradients.summarizer.framework
        self._guard = guard
        self._selection = selection
        self._subgraph = NamedSubgraph(self._framework)
        self._detail = detail
        self._values = NamedTensorSummarizer(self._summarizer, detail, holds=holds)
        self._records = NamedRecords(self._values.rows)
        self._dependencies = DependencyCache(self._summarizer.collector.sink)
        self._checked: dict[tuple[object, ...], tuple[TensorType, int]] = {}  # type and level, by what the user gave
        self._data = StepData(0, STEP_TYPE, detail, holds)
        self._series: dict[tuple[object, ...], int] = {}
        self._with_gradients = Kind.TENSOR_GRAD in selection.kinds
        self._used = False  # in this run
        self.contributions = Contributions(self._framework, guard, self._notice_backward)
        gradients.when_forwarded = self.contributions.look_again
        self._tracer: DependencyTracer | None = None
        self._thread = 0  # on which the step began
        self._lowered: frozenset[str] = frozenset()  # as last reported
        self._forget()

    def _forget(self) -> None:
        self._data.read = []
        self._arrived: dict[NamedTensor, NamedSummary] = {}  # gradients whose loss has no name yet
        self._backward: int | None = None  # the one they are of
        self._losses: list[str] = []
        self._early: dict[str, None] = {}  # losses that were named when no gradient had arrived
        self._values.start_over()

    def begin(self, data: StepData, *, expected: bool) -> None:
        """Make ready for a step, in which it is certain or not that something will be named."""
        self.start_over()
        self._data = data
        self._thread = threading.get_ident()
        if self._with_gradients and self.contributions.is_named is not False and not self._selection.is_bare:
            self._guard.run(self._follow_parameters)
        is_traced = self._dependencies.wants(data.type) and (expected or self._used or self._selection.is_bare)
        if is_traced and not self._framework.is_recorded_by_others():
            self._guard.run(self._trace)
            data.is_traced = self._tracer is not None

    def _follow_parameters(self) -> None:
        self.contributions.follow(self._selection.targets().parameters)

    def _trace(self) -> None:
        self._tracer = DependencyTracer(self._framework, self._framework.trace_step(self._selection.model))

    def start_over(self) -> None:
        """Forget the step."""
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            tracer.leave()
        self.contributions.start_over()
        if self._data.entries or self._arrived or self._losses or self._early or self._backward is not None:
            self._forget()

    def record(self, tensor: Tensor, said: tuple[Any, ...]) -> None:
        """Read a tensor; `said` are the arguments of `Recorder.record` but the tensor, as they come."""
        name, word, role, batch_dim, initial, detail = said
        if self.computes_again():
            self._record_again(tensor, name, role)
            return
        try:
            type, level = self._checked[said]
        except (KeyError, TypeError):  # it is new, or no such thing can be said
            type, level = (
                checked(name, word, role, batch_dim),
                level_of(self._detail.level if detail is None else detail),
            )
            self._checked[said] = type, level
        data = self._data
        key = (0 if initial else data.iterations or 1, name, role, self._contexts.current)
        if key in data.entries:
            what = f"{name!r} (role {role!r})" if role else repr(name)
            raise StateError(
                f"{what} is recorded twice in iteration {key[0]} of the step. Give one of them another name or role, "
                "or open an iteration() or a context() for each pass."
            )
        entry = NamedTensor(key, type, level, len(data.entries), *self._form(tensor, batch_dim, name))
        data.entries[key] = entry
        data.said.append((key, word))
        self._guard.run(self._read, entry, tensor)

    def _record_again(self, tensor: Tensor, name: str, role: str) -> None:
        """A tensor that checkpointing computes a second time: only its gradient is new, if it is clear whose it is."""
        if self._framework.is_recorded_by_others():
            self._data.unread[name] = None
            return
        same = [entry for entry in self._data.entries.values() if (entry.name, entry.role) == (name, role)]
        if len(same) > 1:
            context = self._contexts.current
            same = [entry for entry in same if entry.context == context] or same
        if len(same) == 1 and self._with_gradients and self._framework.requires_grad(tensor):
            self._guard.run(self._follow, same[0], tensor, self._framework.outermost_backward())
        elif not same:
            self._summarizer.report_once(
                "backward",
                f"{name!r} is named while a backward runs, and is left out: only what checkpointing computes again is "
                "expected there. Record tensors in the forward, and their gradients come by themselves.",
            )

    def _form(self, tensor: object, batch_dim: int | None, name: str) -> tuple[tuple[int, ...], int | None]:
        """Shape of the tensor, and which dimension is the batch's."""
        if not isinstance(tensor, self._framework.tensor_type):
            raise ArgumentError(
                f"{name!r} must be a tensor, got {type(tensor).__name__}. Convert it, such as by torch.as_tensor(…)."
            )
        tensor, _ = self._framework.local_part(tensor)
        shape = self._framework.shape(tensor)
        if batch_dim is None or not shape or -1 in shape:
            return () if -1 in shape else shape, None
        if not isinstance(batch_dim, int) or not -len(shape) <= batch_dim < len(shape):
            raise ArgumentError(
                f"{name!r} has {len(shape)} dimensions, so batch_dim={batch_dim!r} is none of them. "
                "Give the batch's, or None for a tensor without a batch."
            )
        return shape, batch_dim % len(shape)

    def computes_again(self) -> bool:
        """Whether checkpointing runs a forward again; a compiled one, of which nothing is seen, counts as that."""
        return self._framework.is_recorded_by_others() or self._framework.backward() != -1

    def _read(self, entry: NamedTensor, tensor: Tensor) -> None:
        if not self._used:
            self._used = True
            if self._tracer is None and threading.get_ident() == self._thread:
                self._trace()  # late: of this step not all is seen
        if self._tracer is not None:
            self._tracer.name(entry, tensor)
        entry.is_training = self._selection.is_training
        part, local = self._framework.local_part(tensor)
        summary = self._values.read(entry, part, is_value=True)
        if summary is not None:
            summary.local = local
            self._count(summary)
        if self._with_gradients and self._framework.requires_grad(tensor):
            self._follow(entry, tensor)

    def _count(self, summary: NamedSummary) -> None:
        """Put what was read into its series."""
        entry = summary.entry
        key = (entry.key, summary.loss, summary.is_value, entry.is_training, summary.local, summary.dtype)
        series = self._series.get(key)  # a look-up by the kinds themselves summaries five times as long
        if series is None:
            what = (Kind.TENSOR, Phase.FORWARD) if summary.is_value else (Kind.TENSOR_GRAD, Phase.BACKWARD)
            site, port = call_site(entry.name, entry.iteration), gradient_port(entry.role, summary.loss)
            mode = Mode.TRAIN if entry.is_training else Mode.EVAL
            identity = (site, port, what[0], mode, what[1], entry.context, summary.local, summary.dtype)
            series = self._series[key] = self._summarizer.collector.number(identity, entry.shape)
        summary.series = series
        self._summarizer.collector.count_into(series, summary.row)
        self._data.read.append(summary)

    def _follow(self, entry: NamedTensor, tensor: Tensor, backward: int | None = None) -> None:
        if self._framework.is_parameter(tensor):
            if entry not in self.contributions.recorded.setdefault(tensor, []):
                self.contributions.recorded[tensor].append(entry)
            self.contributions.follow([tensor])
        else:
            self._gradients.when_computed(tensor, self._arrive, entry, backward)

    def _notice_backward(self, backward: int | None = None) -> None:
        """A gradient has come: if it is of another backward than those before, nobody has said what they were of."""
        if backward is None and self._framework.backward() != self._backward:
            backward = self._framework.outermost_backward()
        if backward is not None and backward != self._backward:
            if self._has_arrived:
                self._name("")
            self._backward = backward

    @property
    def _has_arrived(self) -> bool:
        """Whether there are gradients whose loss has no name yet."""
        return bool(self._arrived or self.contributions.waiting)

    def _arrive(self, gradient: Tensor, entry: NamedTensor, backward: int | None) -> None:
        self._notice_backward(backward)
        if entry in self._arrived:
            self._name("")
        summary = self._take(gradient, entry)
        if summary is not None:
            self._arrived[entry] = summary

    def _take(self, gradient: Tensor, entry: NamedTensor) -> NamedSummary | None:
        part, local = self._framework.local_part(gradient)
        if part is not gradient and self._framework.shape(part) != entry.shape:
            what = f"The gradient of {entry.name!r}"
            self._summarizer.report_once(
                what, f"{what} is not recorded: it is spread over processes otherwise than its tensor."
            )
            return None
        summary = self._values.read(entry, part, is_value=False)
        if summary is not None:
            summary.local = local
        return summary

    def link(self, source: object, target: object) -> None:
        """Let what has one name depend on another."""
        for one in self._meant(source):
            for other in self._meant(target):
                if self._tracer is not None:
                    self._guard.run(self._tracer.link, one, other)
        self._data.said.append(("link", *(thing if isinstance(thing, str) else "" for thing in (source, target))))

    def _meant(self, thing: object) -> list[object]:
        """The tensors recorded last under a name, in this context if there are any, or the tensor itself."""
        if not isinstance(thing, str):
            self._form(thing, None, "link()")
            return [thing]
        context, all_entries = self._contexts.current, self._data.entries.values()
        entries = [entry for entry in all_entries if thing in (entry.name, entry.label)]
        entries = [entry for entry in entries if entry.context == context] or entries
        if not entries:
            known = ", ".join(dict.fromkeys(repr(entry.name) for entry in all_entries)) or "nothing"
            raise SelectError(
                f"link() knows no tensor {thing!r} in this step. Record it first; recorded so far: {known}."
            )
        return [entry for entry in entries if entry.iteration == entries[-1].iteration]

    def name_gradients(self, loss: str) -> None:
        """Give a name to the loss whose gradients have arrived since the last time."""
        if not isinstance(loss, str) or not loss or "@" in loss:
            raise ArgumentError(f"gradients() needs the name of a loss, without '@', not {loss!r}.")
        known = {summary.entry for summary in self._data.read if not summary.is_value and summary.loss == loss}
        waiting = self.contributions.waiting
        recorded = (
            each for tensor, several in self.contributions.recorded.items() if tensor in waiting for each in several
        )
        for entry in (*self._arrived, *recorded):
            if entry in known:
                raise StateError(
                    f"The gradient of {entry.name!r} for {loss!r} has arrived twice in this step. Call gradients() "
                    "after each backward, with a name for each loss."
                )
        late = not self.contributions.is_named and self._learn_of_losses(loss)
        if self._has_arrived:
            self._gradients.arrived = True
            self._early.pop(loss, None)
            self._guard.run(self._name, loss)
        elif not late:
            self._early[loss] = None

    def _learn_of_losses(self, loss: str) -> bool:
        """The training names its losses from now on; whether that came too late for this one."""
        late, self.contributions.is_named = self.contributions.is_named is False, True
        if self._selection.is_bare or not self._with_gradients:
            return False
        if late:
            self._guard.run(self._follow_parameters)
            self._summarizer.report(
                f"gradients({loss!r}) came for the first time, and after an optimizer had stepped: what it adds to "
                "gradients of parameters is recorded from the next recorded step on. Call it right after backward()."
            )
        if not all(map(self._framework.is_parameter, self._selection.targets().parameters)):
            self._summarizer.report_once("shards", _SHARDS)
        return late

    def _name(self, loss: str) -> None:
        loss = loss or self._unsaid()
        self._losses.append(loss)
        arrived, self._arrived = list(self._arrived.values()), {}
        for parameter, gradient in self.contributions.name(loss).items():
            summaries = [self._take(gradient, entry) for entry in self.contributions.recorded.get(parameter, ())]
            arrived += [summary for summary in summaries if summary is not None]
        for summary in arrived:
            summary.loss = loss
            self._count(summary)

    def _count_parameters(self) -> None:
        """Put what each loss added to the gradients of parameters into its series."""
        names = self._selection.targets().parameters
        what = (Kind.TENSOR_GRAD, Mode.TRAIN, Phase.BACKWARD, "", self._framework.gradient_part())
        self._summarizer.add_all(
            [
                (
                    gradient,
                    [SeriesKey(name, gradient_port(Kind.WEIGHT_GRAD.value, loss), *what) for name in names[parameter]],
                )
                for loss, sums in self.contributions.of_loss.items()
                for parameter, gradient in sums.items()
                if parameter in names
            ]
        )

    def _unsaid(self) -> str:
        """What to call a loss that nobody has named in time."""
        self._report_early()
        if len(self._early) == 1 and not self._losses:
            return next(iter(self._early))  # nothing else can have been meant
        return f"backward_{len(self._losses) + 1}" if self._early or "" in self._losses else ""

    def finish(self) -> None:
        """Count what was read into its series: the step is over."""
        data = self._data
        if self._has_arrived:
            self._name("")
        if self.contributions.is_named:
            self._count_parameters()
        data.losses = dict.fromkeys(self._losses)
        self._report_lowered()
        self._report_unread()
        if not self._losses:
            self._report_early()

    def add_records(self, scale: float | None) -> None:
        """Add records of what was read to the step; `scale` is what gradients were multiplied by, if that is known."""
        self._records.add(self._data, scale)
        if self._data.entries:
            self._add_graphs(self._data)

    def _add_graphs(self, data: StepData) -> None:
        """Find how the tensors named in the step depend on each other, as far as was seen."""
        tracer = self._tracer
        data.order, data.graphs = hash(tuple(data.said)), ()
        if tracer is not None or data.order not in self._dependencies.known:
            parameters = {tensor: name for name, tensor in self._selection.named_parameters()}
            trouble = None if tracer is None else tracer.trouble
            links = tracer.links(parameters) if tracer is not None and trouble is None else None
            if trouble is not None:
                text = f"{type(trouble).__name__}: {trouble}"
                self._summarizer.report(f"How named tensors depend on each other was not seen in this step: {text}.")
            data.graphs = self._subgraph.graphs(data, parameters, links or {})
            data.is_traced &= links is not None
        self._dependencies.learn(data)

    def keep(self, data: StepData, reason: str) -> None:
        """A step that has ended is recorded."""
        if data.graphs is not None:
            self._dependencies.put(data, reason)

    def _report_early(self) -> None:
        if self._early and self._with_gradients:
            calls = ", ".join(f"gradients({loss!r})" for loss in self._early)
            self._summarizer.report_once(
                "gradients",
                f"{calls} came when no gradient of a recorded tensor had arrived. Call it after backward(); only "
                "tensors that require grad and were recorded before that have gradients.",
            )

    def _report_unread(self) -> None:
        if self._data.unread:
            names = ", ".join(map(repr, self._data.unread))
            self._summarizer.report_once(
                "compiled",
                f"Nothing is recorded of {names}: inside what torch.compile or torch.jit.trace has made no tensor can "
                "be read. Record what comes out of it.",
            )

    def _report_lowered(self) -> None:
        lowered = frozenset(self._values.too_large)
        if lowered and not lowered <= self._lowered:
            self._lowered |= lowered
            size, names = self._detail.bytes_per_step, ", ".join(map(repr, self._values.too_large))
            self._summarizer.report(
                f"Values of {names} are kept at a lower detail: more than {size:,} "
                "bytes would be kept of one step. Give watch(detail=Detail(bytes_per_step=…)) for more.",
            )
