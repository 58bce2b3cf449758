"""Listens to a model while a step is recorded, and to its evaluations between recorded steps."""

from __future__ import annotations

import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import FrameType
from typing import Any

from layerscope.capture.core.call_graph import CallGraphRecorder
from layerscope.capture.core.collector import Collector
from layerscope.capture.core.contexts import Contexts, Evaluations, Within
from layerscope.capture.core.forwards import Forwards
from layerscope.capture.core.framework import Framework, Selection
from layerscope.capture.core.gradients import GradientReader
from layerscope.capture.core.guard import ListenerGuard
from layerscope.capture.core.named_reader import NamedReader
from layerscope.capture.core.named_tensors import Detail, StepData, attach_listeners
from layerscope.capture.core.schedule import Schedule
from layerscope.capture.core.summarizer import Summarizer, SummaryOptions
from layerscope.model.records import CallGraph, Event, Kind, Phase, Sink

_IN_EVALUATIONS = frozenset((Kind.INPUT, Kind.OUTPUT, Kind.TENSOR))
_abandoned: deque[ExitStack] = deque()


def abandon(hooks: ExitStack) -> None:
    """Have hooks that do nothing any more removed later: the framework may be going through its hooks right now."""
    _abandoned.append(hooks.pop_all())


def remove_abandoned() -> None:
    """Remove abandoned hooks: from the training's own thread, outside of any hook."""
    while _abandoned:
        _abandoned.popleft().close()


class ModelListener:
    """Reads the selected tensors into a collector while it is attached; changes none of them.

    A framework puts its hooks in place in the methods that begin with `_hook`: they call `forwards` for every module.
    """

    framework: Framework
    is_compiled = False  # whether modules are, so that their hooks stay in place all the time

    def __init__(
        self,
        selection: Selection,
        collector: Collector,
        report: Callable[[str, str], None],
        options: SummaryOptions,
        detail: Detail,
        *,
        holds: bool = False,
    ) -> None:
        def warn(text: str) -> None:
            report("warning", text)

        framework = self.framework
        self._selection = selection
        self._collector = collector
        self._report = report
        self._hooks = ExitStack()
        self._guard = ListenerGuard(framework.shield, warn, self._fail)
        self._contexts = Contexts(framework)
        self._summarizer = Summarizer(framework, collector, warn, options)
        self._gradients = GradientReader(self._summarizer, self._guard, selection.kinds)
        self.named = NamedReader(self._gradients, self._guard, selection, self._contexts, detail, holds=holds)
        self._graph = CallGraphRecorder(framework, report)
        most = options.evaluation if selection.kinds & _IN_EVALUATIONS else 0
        self._evaluations = Evaluations(framework, collector, self._contexts, most)
        self.forwards = Forwards(self._gradients, self._guard, self._graph, self._contexts, self._evaluations)
        self._has_reported_mixed = False
        self._idle_hooks = ExitStack()
        self._is_listening = False  # to forwards
        self._is_paused = True  # so that no evaluation is recorded
        self._find_targets()
        self._before: int | None = None  # how often weights were written when an evaluation began, if that matters

    @classmethod
    def open(
        cls,
        selection: Selection,
        schedule: Schedule,
        detail: Detail,
        sink: Sink,
        options: SummaryOptions,
        recorder: weakref.ref[Any],
    ) -> ModelListener:
        """A listener that reads the selection into the sink, for a recorder that it does not keep alive."""

        def report(level: str, text: str) -> None:
            live = recorder()
            if live is not None:
                sink.put(Event(live.current_step, level, text, time.time()))

        if not selection.is_bare:
            sink.put(CallGraph(selection.module_nodes()))
        options = replace(options, evaluation=schedule.evaluation)
        return cls(selection, Collector(sink), report, options, detail, holds=schedule.keep_last > 0)

    def _hook_forwards(self, hooks: ExitStack) -> None:
        """Put hooks on modules in place, until the stack is closed."""
        raise NotImplementedError

    def _hook_parameters(self, hooks: ExitStack) -> None:
        """Put further hooks of a recorded step in place, until the stack is closed."""

    def _hook_idle(self, hooks: ExitStack) -> None:
        """Have `_notice` called for each module that `Evaluations.awaits`, in steps that are not recorded."""

    def _read_parameters(self) -> Mapping[Phase, float | None]:
        """Read what stands when the step ends; the factors on gradients by when they were read, None if not known."""
        return {}

    def _has_trained(self) -> bool:
        """Whether a backward ran in the step."""
        return self._gradients.arrived

    def attach(self) -> None:
        """Put the hooks in place, or none if that fails."""
        remove_abandoned()
        if self._guard.failed:
            return
        self._end_evaluation()
        self._idle_hooks.close()
        self._begin()
        try:
            self._listen()
            self._hook_parameters(self._hooks)
        except BaseException:
            self.detach()
            raise

    def _begin(self) -> None:
        self._find_targets()
        self._start_over()
        self._contexts.is_followed = True

    def _listen(self) -> None:
        self._hook_forwards(self._hooks)
        self._hooks.enter_context(attach_listeners.listening(self._name))
        self._is_listening = True

    def _stop_listening(self) -> None:
        self._is_listening = False
        self._hooks.close()

    def detach(self) -> None:
        """Take the hooks of a recorded step away."""
        remove_abandoned()
        if self._is_listening:
            self._settle()
        self._stop_listening()
        self._contexts.is_followed = False
        self._start_over()
        self._wait()

    def pause(self) -> None:
        """Read nothing, of evaluations either, until the next step ends or begins to be recorded."""
        self._end_evaluation()
        self._idle_hooks.close()
        self._is_paused = True

    def abandon(self, *, keep: bool = False) -> None:
        """Read nothing any more, without waiting for a lock; the hooks are removed when it is safe.

        `keep` waits for one nevertheless, to hand over an evaluation in progress.
        """
        self._guard.failed = True  # which every hook asks first
        if keep and (self._is_listening or self._evaluations.is_apart):
            self._settle()
            self._collector.discard()
        abandon(self._hooks)
        abandon(self._idle_hooks)

    def close(self) -> None:
        """Let go of everything, for good."""
        self._end_evaluation()
        self.detach()
        self._idle_hooks.close()

    def _fail(self) -> None:
        """End the listening, from inside a hook."""
        self.abandon()
        self._start_over()

    def _wait(self) -> None:
        """Wait for an evaluation, in steps that are not recorded."""
        self._idle_hooks.close()
        if self._evaluations.is_due and not self._guard.failed and not self.is_compiled:
            self._hook_idle(self._idle_hooks)

    def _notice(self, module: Any, args: tuple[object, ...] = ()) -> None:
        """A module is about to be called in a step that is not recorded, when an evaluation is due or goes on."""
        if self.framework.backward() == -1:
            self._guard.run(self._evaluate, module, args, sys._getframe(2))

    def _evaluate(self, module: Any, args: tuple[object, ...], frame: FrameType) -> None:
        evaluations, site = self._evaluations, self._evaluations.roots[module]
        if module.training:
            self._end_evaluation()
            evaluations.train(site)
            return
        if not evaluations.is_apart:
            self._begin()
            evaluations.is_apart = True
            self._before = self._written() if evaluations.may_train(site) else None
        if self._is_listening and not self.is_compiled:  # and the hooks have counted the call
            if self.forwards.is_muted:
                self._stop_listening()
        elif not evaluations.has_room(site):
            self._stop_listening()
            evaluations.count(site)
        else:
            if not self._is_listening:
                self._listen()
            if not self.is_compiled:
                self.forwards.begin_late(module, args, frame)

    def _written(self) -> int:
        """How often the weights were written so far."""
        framework, named = self.framework, self._selection.named_parameters()
        return sum(framework.version(tensor) or 0 for _, tensor in named if framework.requires_grad(tensor))

    def _end_evaluation(self, *, with_step: bool = False) -> None:
        """End an evaluation in a step that is not recorded; one that ends with a step may have been a training."""
        evaluations = self._evaluations
        if not evaluations.is_apart:
            return
        evaluations.is_apart = False
        trained = with_step and self._before is not None and self._before != self._written()
        graph = self._news() if self._settle(trained=trained) else None
        if graph is not None:
            self._collector.sink.put(graph)
            self._graph.keep(graph.calls, graph.edges)
        self._stop_listening()
        self._contexts.is_followed = False
        self._start_over()
        if not evaluations.is_due:
            self._idle_hooks.close()

    def _settle(self, *, recorded: bool = False, pending: bool = False, trained: bool | None = None) -> bool:
        """Decide about the rows of an evaluation that is over; whether it is recorded."""
        if trained is None:
            trained = self._has_trained()
        settled = self._evaluations.settle(recorded=recorded, pending=pending, trained=trained)
        for (step, site, context), text in settled.items():
            where = f"{site} in context {context}" if context else site
            self._collector.sink.put(Event(step, "evaluation", f"{text} of {where}", time.time()))
        return bool(settled)

    def end_step(self, step: int, *, recorded: bool = False, pending: bool = False) -> None:
        """A step ends: it is recorded, or may be later, or neither."""
        if self._evaluations.is_apart:
            self._guard.run(self._end_evaluation, with_step=True)
        if self._is_listening:
            self._guard.run(self._settle, recorded=recorded, pending=pending)
        self._evaluations.end_step(step)
        if self._is_paused:
            self._is_paused = False
            self._wait()

    def context(self, name: str) -> AbstractContextManager[None]:
        """A `with` block whose forwards belong to a context, inside the one around it."""
        return Within(self._contexts, name)

    def discard(self) -> None:
        """Forget the step in progress, and look up the modules and parameters as they are now."""
        if self._is_listening:
            self._settle()
        self._find_targets()
        self._start_over()

    def _find_targets(self) -> None:
        self._targets = self._selection.targets()
        self._evaluations.roots = self._targets.roots

    def finish(self, data: StepData) -> None:
        """Read what is read at the end of a step, and add the records of the step to it."""
        self._guard.run(self._finish, data)
        if not self._guard.failed:
            self.discard()

    def keep(self, data: StepData, reason: str) -> None:
        """A step that has ended is recorded: what it adds to the graph is not handed over again."""
        for record in data.records:
            if isinstance(record, CallGraph):
                self._graph.keep(record.calls, record.edges)
        self.named.keep(data, reason)

    def has_heard(self) -> bool:
        """Whether anything was read in the step in progress."""
        return self._collector.has_rows(aside=self._has_trained())  # else it was an evaluation, which is kept

    def spent_s(self) -> float:
        """Seconds that listening cost in the training's threads, since the last call."""
        return self._guard.taken_s()

    def _finish(self, data: StepData) -> None:
        scales = self._read_parameters()
        scale = scales.get(Phase.BACKWARD, 1.0)
        if scale is None:
            self._report(
                "warning", "Gradients of outputs and inputs are left out: AMP's scale in this step is not known."
            )
        self.named.contributions.end_backwards()
        has_named = bool(data.entries or data.unread or self.named.contributions.is_named)
        if has_named:
            self.named.finish()
        self._collector.finish(data, scales)
        if has_named:
            self.named.add_records(scale)
        graph = self._news()
        if graph is not None:
            data.records.append(graph)
        self._report_unseen()
        self._report_mixed()

    def _news(self) -> CallGraph | None:
        """What the step in progress adds to the graph."""
        calls, edges = self._graph.news()
        return CallGraph(self._selection.module_nodes(), calls, edges) if calls or edges else None

    def _report_unseen(self) -> None:
        """Say, after a step with a backward, what could not be seen of it."""

    def _report_mixed(self) -> None:
        """Say once that forwards were added up which may mean different things."""
        if self._gradients.mixed and not self._has_reported_mixed:
            self._has_reported_mixed = True
            self._report(
                "info",
                f"Forwards of {self._gradients.mixed!r} in one step belong to different backwards, and are added up in "
                'one row. Where they mean different things, such as real and fake, put `with run.context("real"):` '
                "around each: they become series of their own.",
            )

    def _start_over(self) -> None:
        self.named.start_over()
        self._collector.discard()
        self._summarizer.start_over()
        self._gradients.start_over()
        self._contexts.start_over()
        self.forwards.start_over(self._targets)

    def _name(self, tensor: object, name: str) -> None:
        if isinstance(tensor, self.framework.tensor_type) and not self.framework.is_recorded_by_others():
            self._guard.run(self.forwards.name, tensor, name)
