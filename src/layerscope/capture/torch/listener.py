"""Listening to a PyTorch model while a step is recorded."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from layerscope.capture.core.collector import Collector, StepSummaries
from layerscope.capture.core.named_tensors import Detail, NamedStep, attach_listeners
from layerscope.capture.core.recorder import Opened, Recorder
from layerscope.capture.core.schedule import Every, Schedule, schedule_of
from layerscope.capture.torch.call_graph import CallGraphRecorder
from layerscope.capture.torch.contexts import Contexts, Evaluations, IdleHook, Within
from layerscope.capture.torch.forwards import FORWARD_KINDS, Forwards
from layerscope.capture.torch.gradients import GradientHooks
from layerscope.capture.torch.hooks import (
    ListenerGuard,
    abandon,
    compiled_parts,
    is_recorded_by_others,
    remove_abandoned,
)
from layerscope.capture.torch.named_listener import Settings, TorchNamedTensors
from layerscope.capture.torch.parameters import Parameters
from layerscope.capture.torch.summarizer import Summarizer, SummaryOptions
from layerscope.capture.torch.targets import Targets, WatchSelection, module_nodes
from layerscope.model.records import CallGraph, Event, Kind, Phase, Sink

if TYPE_CHECKING:
    from layerscope.capture.torch.compiled_modules import CompiledModules


_IN_EVALUATIONS = frozenset((Kind.INPUT, Kind.OUTPUT, Kind.TENSOR))
_COMPILED_BEFORE = (
    "What happens inside the compiled modules is not seen: they were compiled after watch(), or called before it. "
    "Compile first, then watch, then call them; torch.compiler.reset() makes them be compiled again."
)


class TorchListener:
    """Reads the selected tensors into a collector while it is attached; changes none of them."""

    def __init__(
        self,
        selection: WatchSelection,
        collector: Collector,
        report: Callable[[str, str], None],
        extent: SummaryOptions,
        settings: Settings,
    ) -> None:
        def warn(text: str) -> None:
            report("warning", text)

        self._selection = selection
        self._collector = collector
        self._report = report
        self._hooks = ExitStack()
        self._guard = ListenerGuard(warn, self._fail)
        self._contexts = Contexts()
        self._intake = Summarizer(collector, warn, extent)
        self._gradients = GradientHooks(self._intake, self._guard, selection.kinds)
        self.named = TorchNamedTensors(self._gradients, self._guard, selection, settings, self._contexts)
        self._structure = CallGraphRecorder(report)
        most = extent.evaluation if selection.kinds & _IN_EVALUATIONS else 0
        self._evaluations = Evaluations(collector, self._contexts, most)
        self._forwards = Forwards(self._gradients, self._guard, self._structure, self._contexts, self._evaluations)
        self._parameters = Parameters(self._intake, self._guard, selection, self.named.contributions.end_backwards)
        self._told_unseen = self._told_mixed = False
        self._holds = False  # gradients to the end of a step, since AMP was seen to skip one
        self._compiled = self._compiled_modules()
        self._idle_hooks = ExitStack()
        self._is_hearing = False  # of forwards
        self._is_paused = True  # so that it hears of no evaluation
        self._find_targets()
        self._before: int | None = None  # how often weights were written when an evaluation began, if that matters

    def attach(self) -> None:
        """Put the hooks in place, or none if that fails."""
        remove_abandoned()
        if self._guard.failed:
            return
        self._end_evaluation()
        self._idle_hooks.close()
        self._begin()
        try:
            self._hear_forwards()
            self._keep(self._parameters.hooks(self._targets))
            if self._holds:
                self._keep(self._parameters.holding_hooks())
        except BaseException:
            self.detach()
            raise

    def _begin(self) -> None:
        self._find_targets()
        self._start_over()
        self._contexts.is_followed = True

    def _hear_forwards(self) -> None:
        self._follow_compiled(self._targets)
        if self._compiled is None:
            self._keep(self._forwards.hooks(self._targets))
        else:
            self._compiled.recorded = True
        self._hooks.enter_context(attach_listeners.listening(self._named))
        self._is_hearing = True

    def _hear_nothing(self) -> None:
        self._is_hearing = False
        self._hooks.close()
        if self._compiled is not None:
            self._compiled.recorded = False

    def detach(self) -> None:
        """Take the hooks of a recorded step away."""
        remove_abandoned()
        if self._is_hearing:
            self._settle()
        self._hear_nothing()
        self._contexts.is_followed = False
        self._start_over()
        self._parameters.let_go()
        self._wait()

    def pause(self) -> None:
        """Hear nothing, of evaluations either, until the next step ends or begins to be recorded."""
        self._end_evaluation()
        self._idle_hooks.close()
        self._is_paused = True

    def abandon(self, *, keep: bool = False) -> None:
        """Hear nothing any more, without waiting for a lock; the hooks are taken away when it is safe.

        `keep` waits for one nevertheless, to hand over an evaluation in progress.
        """
        self._guard.failed = True  # which every hook asks first
        if keep and (self._is_hearing or self._evaluations.is_apart):
            self._settle()
            self._collector.discard()
        self._hooks.callback(self._structure.start_over)
        abandon(self._hooks)
        abandon(self._idle_hooks)
        if self._compiled is not None:
            self._compiled.recorded = False

    def close(self) -> None:
        """Let go of everything, for good."""
        self._end_evaluation()
        self.detach()
        self._idle_hooks.close()
        if self._compiled is not None:
            self._compiled.close()

    def _fail(self) -> None:
        """End the listening, from inside a hook."""
        self.abandon()
        self._start_over()
        self._parameters.let_go()

    def _follow_compiled(self, targets: Targets) -> None:
        """Put hooks that reach into compiled modules on those that came later."""
        if self._compiled is not None and set(self._compiled.modules) != set(targets.members):
            self._compiled.close()
            self._compiled = self._compiled_modules()

    def _compiled_modules(self) -> CompiledModules | None:
        """Hooks that reach into compiled modules, if there are any."""
        selection = self._selection
        beginnings = compiled_parts(selection.model) if selection.kinds & FORWARD_KINDS else set()
        if not beginnings:
            return None
        from layerscope.capture.torch.compiled_modules import CompiledModules  # loads the compiler

        members, inputs = selection.targets().members, Kind.INPUT in selection.kinds
        return CompiledModules(self._forwards, members, beginnings, inputs=inputs, notice=self._notice_compiled)

    def _wait(self) -> None:
        """Wait for an evaluation, in steps that are not recorded."""
        self._idle_hooks.close()
        if not self._evaluations.is_due or self._guard.failed or self._compiled is not None:  # whose hooks stay
            return
        for root in self._evaluations.roots:
            hook = IdleHook(self._evaluations, self._notice)
            if isinstance(root, nn.TransformerEncoderLayer):  # leaves its fused path for a hook of its own
                handle = register_module_forward_pre_hook(hook)
            else:
                handle = root.register_forward_pre_hook(hook)
            self._idle_hooks.callback(handle.remove)

    def _notice(self, module: nn.Module, args: tuple[object, ...] = ()) -> None:
        """A module is about to be called in a step that is not recorded, when an evaluation is due or goes on."""
        if torch._C._current_graph_task_id() == -1:
            self._guard.run(self._evaluate, module, args, sys._getframe(2))

    def _notice_compiled(self, module: nn.Module) -> None:
        is_idle = self._evaluations.is_apart or not (self._is_hearing or self._is_paused)
        if is_idle and self._evaluations.awaits(module):
            self._notice(module)

    def _evaluate(self, module: nn.Module, args: tuple[object, ...], frame: FrameType) -> None:
        evaluations, site = self._evaluations, self._evaluations.roots[module]
        if module.training:
            self._end_evaluation()
            evaluations.train(site)
            return
        if not evaluations.is_apart:
            self._begin()
            evaluations.is_apart = True
            self._before = self._written() if evaluations.may_train(site) else None
        if self._is_hearing and self._compiled is None:  # and the hooks have counted the call
            if self._forwards.is_muted:
                self._hear_nothing()
        elif not evaluations.has_room(site):
            self._hear_nothing()
            evaluations.count(site)
        else:
            if not self._is_hearing:
                self._hear_forwards()
            if self._compiled is None:
                self._forwards.begin_late(module, args, frame)

    def _written(self) -> int:
        """How often the weights were written so far."""
        return sum(p._version for p in self._selection.model.parameters() if p.requires_grad and not p.is_inference())

    def _end_evaluation(self, *, with_step: bool = False) -> None:
        """End an evaluation in a step that is not recorded; one that ends with a step may have been a training."""
        evaluations = self._evaluations
        if not evaluations.is_apart:
            return
        evaluations.is_apart = False
        trained = with_step and self._before is not None and self._before != self._written()
        graph = self._graph() if self._settle(trained=trained) else None
        if graph is not None:
            self._collector.put(graph)
            self._structure.keep(graph.calls, graph.edges)
        self._hear_nothing()
        self._contexts.is_followed = False
        self._start_over()
        if not evaluations.is_due:
            self._idle_hooks.close()

    def _settle(self, *, recorded: bool = False, held: bool = False, trained: bool | None = None) -> bool:
        """Decide about the rows of an evaluation that is over; whether it is recorded."""
        if trained is None:
            trained = self._has_trained()
        found = self._evaluations.settle(recorded=recorded, held=held, trained=trained)
        for (step, site, context), text in found.items():
            where = f"{site} in context {context}" if context else site
            self._collector.put(Event(step, "evaluation", f"{text} of {where}", time.time()))
        return bool(found)

    def end_step(self, step: int, *, recorded: bool = False, held: bool = False) -> None:
        """A step ends: it is recorded, or held for the case that it will be, or neither."""
        if self._evaluations.is_apart:
            self._guard.run(self._end_evaluation, with_step=True)
        if self._is_hearing:
            self._guard.run(self._settle, recorded=recorded, held=held)
        self._evaluations.end_step(step)
        if self._is_paused:
            self._is_paused = False
            self._wait()

    def _keep(self, handles: Iterable[RemovableHandle]) -> None:
        for handle in handles:
            self._hooks.callback(handle.remove)

    def context(self, name: str) -> AbstractContextManager[None]:
        """A `with` block whose forwards belong to a context, inside the one around it."""
        return Within(self._contexts, name)

    def discard(self) -> None:
        """Forget the step in progress, and look up the modules and parameters as they are now."""
        if self._is_hearing:
            self._settle()
        self._find_targets()
        self._start_over()

    def _find_targets(self) -> None:
        self._targets = self._selection.targets()
        self._evaluations.roots = self._targets.roots

    def finish(self, step: int, now: NamedStep) -> StepSummaries:
        """Read what is read at the end of a step and hand over all of it."""
        self._taken = StepSummaries(0, 0)
        self._guard.run(self._finish, step, now)
        if not self._guard.failed:
            self.discard()
        return self._taken

    def keep(self, taken: StepSummaries) -> None:
        """A step that has ended is recorded: what it adds to the graph is not handed over again."""
        for record in taken.records:
            if isinstance(record, CallGraph):
                self._structure.keep(record.calls, record.edges)

    def has_heard(self) -> bool:
        """Whether anything was read in the step in progress."""
        return self._collector.has_rows(aside=self._has_trained())  # else it was an evaluation, which is kept

    def _has_trained(self) -> bool:
        return self._gradients.arrived or self._parameters.stepped

    def spent_s(self) -> float:
        """Seconds the listener has taken in the training's threads since it was last asked."""
        return self._guard.taken_s()

    def _finish(self, step: int, now: NamedStep) -> None:
        self._parameters.finish()
        scale = self._scale()
        left = scale if self._parameters.still_scaled else self._parameters.scaling.left_on_gradients()
        scales = {Phase.BACKWARD: scale, Phase.STEP: left}
        if scale is None:
            self._report(
                "warning", "Gradients of outputs and inputs are left out: AMP's scale in this step is not known."
            )
        self.named.contributions.end_backwards()
        finishing = now.entries or now.unread or self.named.contributions.is_named
        deep, size = self.named.finish(step, now, scale) if finishing else ([], 0)
        taken = self._collector.finish(step, scales)
        if now.entries:
            records = (*taken.records, *deep)
            taken = StepSummaries(taken.summaries, taken.bytes + size, records, self.named.dependence(now))
        graph = self._graph()
        if graph is not None:
            taken = taken._replace(records=(*taken.records, graph))
        self._taken = taken
        self._tell_unseen()
        self._tell_mixed()

    def _graph(self) -> CallGraph | None:
        """What the step in progress adds to the graph."""
        calls, edges = self._structure.news()
        return CallGraph(module_nodes(self._selection.model), calls, edges) if calls or edges else None

    def _scale(self) -> float | None:
        """What the gradients of this step were multiplied by; None if that cannot be told."""
        parameters, scaling = self._parameters, self._parameters.scaling
        if not self._gradients.arrived and not scaling.fell():  # none arrive from inside compiled modules
            return 1.0
        if parameters.stepped:
            return scaling.scale
        scale = scaling.of_skipped_step()
        if scaling.fell():
            self._report("skipped", "The update was skipped: GradScaler found Inf or NaN in the gradients.")
            if not self._holds:
                self._holds = True
                self._keep(self._parameters.holding_hooks())
        elif parameters.trained:
            self._report("skipped", "No optimizer stepped, though a backward ran: no update was made in this step.")
        return scale

    def _tell_unseen(self) -> None:
        """Say once, after a step with a backward, what could not be seen of it."""
        if self._told_unseen or not (self._gradients.arrived or self._parameters.stepped):
            return
        self._told_unseen = True
        wanted = Kind.WEIGHT_GRAD in self._targets.kinds and self._targets.parameters
        if wanted and not self._parameters.graded and not self._parameters.trained:
            self._report(
                "warning",
                "Gradients of weights are missing: no optimizer stepped, and they were gone when the step ended. Call "
                "run.step() before zero_grad().",
            )
        if self._compiled is None:
            self._tell_uncalled()
        elif not self._compiled.told and any(any(True for _ in part.children()) for part in self._compiled.beginnings):
            self._report("warning", _COMPILED_BEFORE)
        elif any(map(self._gradients.wanted, (Kind.INPUT_GRAD, Kind.OUTPUT_GRAD))):
            self._report("info", "Gradients of inputs and outputs inside compiled modules are not recorded.")

    def _tell_mixed(self) -> None:
        """Say once that forwards were added up which may mean different things."""
        if self._gradients.mixed and not self._told_mixed:
            self._told_mixed = True
            self._report(
                "info",
                f"Forwards of {self._gradients.mixed!r} in one step belong to different backwards, and are added up in "
                'one row. Where they mean different things, such as real and fake, put `with run.context("real"):` '
                "around each: they become series of their own.",
            )

    def _tell_uncalled(self) -> None:
        """Name the modules that were not seen to be called although their parameters have gradients."""
        targets, trained = self._selection.targets(), set(self._parameters.graded)
        for module in self._forwards.called:  # which may share parameters with one that is not
            trained.difference_update(module.parameters(recurse=False))
        silent = [
            path
            for module, path in targets.modules.items()
            if module not in self._forwards.called
            and not isinstance(module, NonDynamicallyQuantizableLinear)  # of attention, which uses its parameters
            and not trained.isdisjoint(module.parameters(recurse=False))
        ]
        if silent and compiled_parts(self._selection.model):
            self._report("warning", _COMPILED_BEFORE)
        elif silent:
            self._report(
                "warning",
                f"Not seen to be called, though trained: {', '.join(silent[:10])}{' …' if len(silent) > 10 else ''}. "
                "Either their forward() was called directly (call the module itself), or another module uses their "
                "parameters.",
            )

    def _start_over(self) -> None:
        self.named.start_over()
        self._collector.discard()
        self._intake.start_over()
        self._gradients.start_over()
        self._contexts.start_over()
        self._forwards.start_over(self._targets)
        self._parameters.start_over(self._targets)

    def _named(self, tensor: object, name: str) -> None:
        if isinstance(tensor, Tensor) and not is_recorded_by_others():
            self._guard.run(self._forwards.name, tensor, name)


_ALL_OF_IT = SummaryOptions()

#: The number of autograd's next node on this thread: another one once a forward has run.
progress: Callable[[], int] = torch._C._autograd._get_sequence_nr


def record(
    selection: WatchSelection,
    every: Every,
    sink: Sink,
    detail: Detail | None = None,
    extent: SummaryOptions = _ALL_OF_IT,
) -> Recorder:
    """A recorder that reads the selection into the sink."""
    schedule, kept = schedule_of(every), detail or Detail()

    def open(recorder: weakref.ref[Recorder]) -> Opened:
        return Opened(sink, listener(selection, schedule, kept, sink, extent, recorder), models=selection.models)

    return Recorder(open, schedule, kept, progress)


def listener(
    selection: WatchSelection,
    schedule: Schedule,
    detail: Detail,
    sink: Sink,
    extent: SummaryOptions,
    recorder: weakref.ref[Recorder],
) -> TorchListener:
    """A listener that reads the selection into the sink, for a recorder that it does not keep alive."""

    def report(level: str, text: str) -> None:
        live = recorder()
        if live is not None:
            sink.put(Event(live.current_step, level, text, time.time()))

    if not selection.is_bare:
        sink.put(CallGraph(module_nodes(selection.model)))
    extent = replace(extent, evaluation=schedule.evaluation)
    return TorchListener(selection, Collector(sink), report, extent, Settings(detail, schedule.keep_last > 0))
