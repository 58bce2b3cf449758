"""Reading the tensors that a training loop names, and their gradients, as deep as is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from layerscope.capture.core.contexts import Contexts
from layerscope.capture.core.dependencies import DependencyTracer, NamedSubgraph
from layerscope.capture.core.framework import Targets, Tensor
from layerscope.capture.core.gradients import Contributions, GradientReader
from layerscope.capture.core.guard import ListenerGuard
from layerscope.capture.core.named_tensors import Detail, KnownDependencies, NamedStep, NamedTensor
from layerscope.capture.core.named_values import NamedSeries, NamedSummary, NamedTensorSummarizer, StepRecordBuilder
from layerscope.capture.core.summarizer import SeriesKey
from layerscope.errors import ArgumentError, StateError
from layerscope.model.records import Kind, Mode, ModuleNode, Phase, Record, call_site, gradient_port

_SHARDS = (
    "What each loss adds to the gradients of sharded parameters is not recorded: FSDP adds the gradients up elsewhere. "
    "Their gradients of all losses together are."
)


class Selection(Protocol):
    """What is recorded of a model, looked up anew whenever its modules or parameters were replaced."""

    kinds: frozenset[Kind]

    @property
    def model(self) -> Any:
        """The model, as the framework knows it."""
        ...

    @property
    def models(self) -> tuple[object, ...]:
        """The models of the user, which keep the recorder alive until its first step ends."""
        ...

    @property
    def is_bare(self) -> bool:
        """Whether there is no model: only what the user names is recorded."""
        ...

    @property
    def is_training(self) -> bool:
        """Whether the model is in training mode."""
        ...

    def targets(self) -> Targets:
        """The modules, parameters and buffers as they are now."""
        ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """All parameters of the model, each once."""
        ...

    def module_nodes(self) -> tuple[ModuleNode, ...]:
        """The modules, in the order of registration."""
        ...


class Settings(NamedTuple):
    """How much is kept of what is named."""

    detail: Detail
    holds: bool  # all samples until the step ends, for some may be chosen then


class NamedReader:
    """Reads what is named in the step in progress; `begin` one, `finish` it, or `start_over`."""

    def __init__(
        self,
        gradients: GradientReader,
        guard: ListenerGuard,
        selection: Selection,
        settings: Settings,
        contexts: Contexts,
    ) -> None:
        self._gradients = gradients
        self._contexts = contexts
        self._intake = gradients.summarizer
        self._framework = gradients.summarizer.framework
        self._guard = guard
        self._selection = selection
        self._cut = NamedSubgraph(self._framework)
        self._detail = settings.detail
        self._taker = NamedTensorSummarizer(self._intake, settings.detail, holds=settings.holds)
        self._places = NamedSeries()
        self._series: dict[tuple[object, ...], int] = {}
        self._with_gradients = Kind.TENSOR_GRAD in selection.kinds
        self._used = False  # in this run
        self.contributions = Contributions(self._framework, guard, self._notice_backward)
        gradients.when_forwarded = self.contributions.look_again
        self._tracer: DependencyTracer | None = None
        self._thread = 0  # on which the step began
        self._whole = False  # traced from the beginning of the step
        self._lowered: frozenset[str] = frozenset()  # as last told
        self._forget()

    def _forget(self) -> None:
        self._taken: list[NamedSummary] = []
        self._arrived: dict[NamedTensor, NamedSummary] = {}  # gradients whose loss has no name yet
        self._backward: int | None = None  # the one they are of
        self._losses: list[str] = []
        self._early: dict[str, None] = {}  # losses that were named when no gradient had arrived
        self._taker.start_over()

    def begin(self, *, expected: bool, traced: bool) -> None:
        """Make ready for a step; it is traced if that is wanted and somebody names tensors."""
        self.start_over()
        self._thread = threading.get_ident()
        if self._with_gradients and self.contributions.is_named is not False and not self._selection.is_bare:
            self._guard.run(self._follow_parameters)
        if (
            traced
            and (expected or self._used or self._selection.is_bare)
            and not self._framework.is_recorded_by_others()
        ):
            self._guard.run(self._trace)
            self._whole = self._tracer is not None

    def _follow_parameters(self) -> None:
        self.contributions.follow(self._selection.targets().parameters)

    def _trace(self) -> None:
        self._tracer = DependencyTracer(self._framework, self._framework.trace_step(self._selection.model))

    def start_over(self) -> None:
        """Forget the step."""
        tracer, self._tracer, self._whole = self._tracer, None, False
        if tracer is not None:
            tracer.leave()
        self.contributions.start_over()
        if self._taken or self._arrived or self._losses or self._early or self._backward is not None:
            self._forget()

    def form(self, tensor: object, batch_dim: int | None, name: str) -> tuple[tuple[int, ...], int | None]:
        """Shape of the tensor, and which dimension is the batch's."""
        if not isinstance(tensor, self._framework.tensor_type):
            raise ArgumentError(
                f"{name!r} is no tensor but {type(tensor).__name__}. Record a tensor: torch.as_tensor(…)."
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

    def is_recorded_by_others(self) -> bool:
        """Whether a compiler looks at what is computed, and must not find our operations in it."""
        return self._framework.is_recorded_by_others()

    def computes_again(self) -> bool:
        """Whether checkpointing runs a forward again; a compiled one, of which nothing is heard, counts as that."""
        return self._framework.is_recorded_by_others() or self._framework.backward() != -1

    @property
    def context(self) -> str:
        """The context of what is computed now."""
        return self._contexts.current

    def read(self, entry: NamedTensor, tensor: Tensor) -> None:
        """Take a named tensor in."""
        self._guard.run(self._read, entry, tensor)

    def _read(self, entry: NamedTensor, tensor: Tensor) -> None:
        if not self._used:
            self._used = True
            if self._tracer is None and threading.get_ident() == self._thread:
                self._trace()  # late: of this step not all is seen
        if self._tracer is not None:
            self._tracer.name(entry, tensor)
        entry.is_training = self._selection.is_training
        part, local = self._framework.local_part(tensor)
        take = self._taker.take(entry, part, is_value=True)
        if take is not None:
            take.local = local
            self._count(take)
        if self._with_gradients and self._framework.requires_grad(tensor):
            self._follow(entry, tensor)

    def _count(self, take: NamedSummary) -> None:
        """Put what was read into its series."""
        entry = take.entry
        key = (entry.key, take.loss, take.is_value, entry.is_training, take.local, take.dtype)
        series = self._series.get(key)  # a look-up by the kinds themselves takes five times as long
        if series is None:
            what = (Kind.TENSOR, Phase.FORWARD) if take.is_value else (Kind.TENSOR_GRAD, Phase.BACKWARD)
            site, port = call_site(entry.name, entry.iteration), gradient_port(entry.role, take.loss)
            mode = Mode.TRAIN if entry.is_training else Mode.EVAL
            identity = (site, port, what[0], mode, what[1], entry.context, take.local, take.dtype)
            series = self._series[key] = self._intake.collector.number(identity, entry.shape)
        take.series = series
        self._intake.collector.count_into(series, take.row)
        self._taken.append(take)

    def follow(self, entry: NamedTensor, tensor: Tensor) -> None:
        """Take in the gradient of a tensor that was named before."""
        if self._with_gradients and self._framework.requires_grad(tensor):
            self._guard.run(self._follow, entry, tensor, self._framework.outermost_backward())

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
        take = self._take(gradient, entry)
        if take is not None:
            self._arrived[entry] = take

    def _take(self, gradient: Tensor, entry: NamedTensor) -> NamedSummary | None:
        part, local = self._framework.local_part(gradient)
        if part is not gradient and self._framework.shape(part) != entry.shape:
            what = f"The gradient of {entry.name!r}"
            self._intake.report_once(
                what, f"{what} is not recorded: it is spread over processes otherwise than its tensor."
            )
            return None
        take = self._taker.take(entry, part, is_value=False)
        if take is not None:
            take.local = local
        return take

    def link(self, source: Any, target: Any) -> None:
        """Let one entry or tensor depend on another."""
        if self._tracer is not None:
            self._guard.run(self._tracer.link, source, target)

    def name_gradients(self, loss: str) -> None:
        """Give a name to the loss whose gradients have arrived since the last time."""
        known = {take.entry for take in self._taken if not take.is_value and take.loss == loss}
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
            self._intake.report(
                f"gradients({loss!r}) came for the first time, and after an optimizer had stepped: what it adds to "
                "gradients of parameters is recorded from the next recorded step on. Call it right after backward()."
            )
        if not all(map(self._framework.is_parameter, self._selection.targets().parameters)):
            self._intake.report_once("shards", _SHARDS)
        return late

    def _name(self, loss: str) -> None:
        loss = loss or self._unsaid()
        self._losses.append(loss)
        arrived, self._arrived = list(self._arrived.values()), {}
        for parameter, gradient in self.contributions.name(loss).items():
            takes = [self._take(gradient, entry) for entry in self.contributions.recorded.get(parameter, ())]
            arrived += [take for take in takes if take is not None]
        for take in arrived:
            take.loss = loss
            self._count(take)

    def _count_parameters(self) -> None:
        """Put what each loss added to the gradients of parameters into its series."""
        names = self._selection.targets().parameters
        what = (Kind.TENSOR_GRAD, Mode.TRAIN, Phase.BACKWARD, "", self._framework.gradient_part())
        self._intake.add_all(
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
        self._tell_early()
        if len(self._early) == 1 and not self._losses:
            return next(iter(self._early))  # nothing else can have been meant
        return f"backward_{len(self._losses) + 1}" if self._early or "" in self._losses else ""

    def finish(self, step: int, now: NamedStep, scale: float | None) -> tuple[list[Record], int]:
        """All that was read of the chosen samples, and the bytes of their values.

        `scale` is what gradients were multiplied by, if that is known.
        """
        if self._has_arrived:
            self._name("")
        if self.contributions.is_named:
            self._count_parameters()
        now.losses = dict.fromkeys(self._losses)
        self._tell_lowered()
        self._tell_unread(now)
        if not self._losses:
            self._tell_early()
        if self._places.samples != now.samples():
            self._places = NamedSeries(now.samples())
        takes = [take for take in self._taken if scale is not None or take.is_value]
        ending = StepRecordBuilder(step, self._taker.rows, self._places, scale or 1.0)
        return ending.records(takes), ending.kept_bytes

    def dependence(self, now: NamedStep) -> KnownDependencies:
        """How the named tensors of the step depend on each other, as far as was seen."""
        order = hash(tuple(now.said))
        if self._tracer is None and order in now.known:
            return KnownDependencies(order, (), whole=False)
        parameters = {tensor: name for name, tensor in self._selection.named_parameters()}
        trouble = None if self._tracer is None else self._tracer.trouble
        links = self._tracer.links(parameters) if self._tracer is not None and trouble is None else None
        if trouble is not None:
            text = f"{type(trouble).__name__}: {trouble}"
            self._intake.report(f"How named tensors depend on each other was not seen in this step: {text}.")
        graphs = self._cut.graphs(now, parameters, links or {})
        return KnownDependencies(order, graphs, self._whole and links is not None)

    def tell_unheard(self, name: str) -> None:
        """Say, once, that something is named in a backward and that nothing is recorded there."""
        self._intake.report_once(
            "backward",
            f"{name!r} is named while a backward runs, and is left out: only what checkpointing computes again is "
            "expected there. Record tensors in the forward, and their gradients come by themselves.",
        )

    def _tell_early(self) -> None:
        if self._early and self._with_gradients:
            calls = ", ".join(f"gradients({loss!r})" for loss in self._early)
            self._intake.report_once(
                "gradients",
                f"{calls} came when no gradient of a recorded tensor had arrived. Call it after backward(); only "
                "tensors that require grad and were recorded before that have gradients.",
            )

    def _tell_unread(self, now: NamedStep) -> None:
        if now.unread:
            names = ", ".join(map(repr, now.unread))
            self._intake.report_once(
                "compiled",
                f"Nothing is recorded of {names}: inside what torch.compile or torch.jit.trace has made no tensor can "
                "be read. Record what comes out of it.",
            )

    def _tell_lowered(self) -> None:
        lowered = frozenset(self._taker.too_large)
        if lowered and not lowered <= self._lowered:
            self._lowered |= lowered
            size, names = self._detail.bytes_per_step, ", ".join(map(repr, self._taker.too_large))
            self._intake.report(
                f"Values of {names} are kept at a lower detail: more than {size:,} "
                "bytes would be kept of one step. Give watch(detail=Detail(bytes_per_step=…)) for more.",
            )
