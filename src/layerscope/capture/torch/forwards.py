"""Calls of modules in progress: which module, at which site, in which thread."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Mapping
from types import FrameType

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from layerscope.capture.torch.call_graph import CallGraphRecorder, Key, OutermostCalls, TracedForward
from layerscope.capture.torch.contexts import Contexts, Evaluations, IdleHook, State
from layerscope.capture.torch.gradients import Consumers, Edge, GradientFlow, GradientHooks, edge_of
from layerscope.capture.torch.hooks import Hook, ListenerGuard, is_recorded_by_others
from layerscope.capture.torch.summarizer import SeriesKey
from layerscope.capture.torch.targets import Targets, numbered
from layerscope.capture.torch.tensor_tree import inputs_in, tensors_in
from layerscope.capture.torch.trace.functions import may_take_fused_path
from layerscope.model.patterns import ROOT
from layerscope.model.records import Kind, Mode, Phase


class Call:
    """One call of a module of the model, in progress."""

    __slots__ = (
        *("again", "before", "context", "first_node", "inputs", "inside"),
        *("is_new", "module", "names", "parent", "site", "waits"),
    )

    def __init__(self, module: nn.Module, site: str, parent: str) -> None:
        self.module = module
        self.site = site
        self.context = ""  # the name that the training loop gave the forward
        self.before: State | None = None  # the context to go back to, of a call that is computed again
        self.parent = parent  # site of the call around it, "" for an outermost one
        self.is_new = False  # whether the graph of calls lacks it
        # Checkpointing computes it a second time, while backward runs: its values were read the first time.
        self.again = torch._C._current_graph_task_id() != -1
        self.first_node: int = torch._C._autograd._get_sequence_nr()  # what autograd will number the next node
        self.waits = False  # for the module's own hooks, which may replace what comes out
        self.inputs: list[tuple[Edge, SeriesKey]] = []
        self.inside: dict[Consumers, GradientFlow] = {}
        self.names: dict[str, int] = {}

    @property
    def mode(self) -> Mode:
        """Whether the module is training."""
        return Mode.TRAIN if self.module.training else Mode.EVAL

    def place(self, port: str, kind: Kind, phase: Phase = Phase.FORWARD) -> SeriesKey:
        """The place of a tensor that the call takes or gives, or of its gradient."""
        return SeriesKey(self.site, port, kind, self.mode, phase, self.context)


class Thread(threading.local):
    """The calls in progress on one thread, and which module was called how often in the outermost of them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.counts: dict[nn.Module, int] = {}
        self.order: list[Key] = []  # the calls inside the outermost one so far, and tensors named in them
        self.forward: TracedForward | None = None
        self.frame: FrameType | None = None  # where the outermost module was called, while it runs
        self.muted = 0  # calls in progress that are not read: a forward, and those inside it
        self.told: dict[tuple[nn.Module, str], int] = {}  # the same inside compiled regions, by port


def is_below(frame: FrameType | None, other: FrameType) -> bool:
    """Whether the other frame is on the way from the frame down to where the thread began."""
    while frame is not None and frame is not other:
        frame = frame.f_back
    return frame is not None


OF_MODULES = frozenset(
    (Kind.INPUT, Kind.INPUT_GRAD, Kind.INPUT_GRAD_NORM, Kind.OUTPUT, Kind.OUTPUT_GRAD, Kind.OUTPUT_GRAD_NORM)
)
FORWARD_KINDS = OF_MODULES | {
    *(Kind.TENSOR, Kind.TENSOR_GRAD, Kind.WEIGHT_GRAD),  # whose absence after a backward is a step that was skipped
}


class Forwards:
    """Reads inputs and outputs of the chosen modules, and has their gradients read."""

    def __init__(
        self,
        gradients: GradientHooks,
        guard: ListenerGuard,
        structure: CallGraphRecorder,
        contexts: Contexts,
        evaluations: Evaluations,
    ) -> None:
        self._intake = gradients.intake
        self._contexts = contexts
        self._gradients = gradients
        self._guard = guard
        self._structure = structure
        self._evaluations = evaluations
        self._roots = OutermostCalls()
        self._thread = Thread()
        self._lock = threading.Lock()
        self._behind: dict[nn.Module, tuple[RemovableHandle, int]] = {}  # and how many calls in progress wait for it
        self._read: Mapping[nn.Module, str] = {}  # modules whose inputs or outputs are wanted
        self._changing = weakref.WeakSet[nn.Module]()  # of them, those whose own hooks may change what goes in
        self._inputs = False  # whether anything is read of what goes in
        self._replaceable = False  # by hooks that run after ours
        self.called = weakref.WeakSet[nn.Module]()

    def hooks(self, targets: Targets) -> list[RemovableHandle]:
        """The hooks of a recorded step, put in place."""
        self._take_targets(targets)
        if not targets.kinds & FORWARD_KINDS:
            return []
        self._replaceable = True
        self._changing = weakref.WeakSet(
            module
            for module in self._read
            if any(type(hook) is not IdleHook for hook in module._forward_pre_hooks.values())
        )
        return [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
            *(
                module.register_forward_pre_hook(Hook(self._behind_pre_hooks), with_kwargs=True)
                for module in self._changing
            ),
        ]

    def start_over(self, targets: Targets) -> None:
        """Forget the step."""
        self._take_targets(targets)
        if self._thread.calls or self._thread.forward is not None:
            self._abandon()
        self._structure.start_over()
        self._roots.start_over()
        self._thread = Thread()
        self.called.clear()
        while self._behind:
            self._behind.popitem()[1][0].remove()

    def _take_targets(self, targets: Targets) -> None:
        self._targets = targets
        self._read = targets.modules if targets.kinds & OF_MODULES else {}
        self._inputs = Kind.INPUT in targets.kinds or self._gradients.wanted(Kind.INPUT_GRAD)

    def name(self, tensor: Tensor, name: str) -> None:
        """Read a tensor that the user named, and its gradient."""
        calls = self._thread.calls
        if self._thread.muted:
            return
        call = calls[-1] if calls else None
        if call is None and torch._C._current_graph_task_id() != -1:
            return  # computed again, and who called it is not known
        if call is not None:
            count = call.names[name] = call.names.get(name, 0) + 1
            name = numbered(name, count)
        site = name if call is None or call.site == ROOT else f"{call.site}.{name}"
        if call is not None and self._replaceable and not call.again:
            self._add_named(call, tensor, site)
        mode = Mode.TRAIN if call is None else call.mode
        place = SeriesKey(site, "tensor", Kind.TENSOR, mode, Phase.FORWARD, self._contexts.current)
        if Kind.TENSOR in self._targets.kinds and (call is None or not call.again):
            self._intake.add(tensor, place)
        if Kind.TENSOR_GRAD in self._targets.kinds and tensor.requires_grad:
            self._gradients.follow(tensor, place._replace(kind=Kind.TENSOR_GRAD, phase=Phase.BACKWARD))

    def _add_named(self, call: Call, tensor: Tensor, site: str) -> None:
        """Add a tensor that was named inside a call to the graph."""
        key = site, call.site
        self._thread.order.append(key)
        if self._structure.lacks(key):
            self._structure.add_call(key, self._targets.members[call.module], [("tensor", tensor)])
            self._structure.complete(key, [("tensor", tensor)])
        if self._thread.forward is not None:
            self._thread.forward.name(tensor, site)

    def _before(self, module: nn.Module, args: tuple[object, ...]) -> None:
        path = self._targets.members.get(module)
        if path is None or is_recorded_by_others():
            return
        if self._thread.muted:
            self._thread.muted += 1
            return
        read = module in self._read and (self._inputs or module._forward_hooks)
        if not read and self._thread.calls and path != ROOT:  # quickly: of most there is nothing to read
            self._guard.calls += 1
            call = self._begin(module)
            if call.is_new:
                self._guard.run(self._add_call, call, args, sys._getframe(1).f_locals.get("kwargs", {}))
            return
        self._begin_slowly(module, args, sys._getframe(1))

    @property
    def is_muted(self) -> bool:
        """Whether the call in progress on this thread is not read."""
        return self._thread.muted > 0

    def begin_late(self, module: nn.Module, args: tuple[object, ...], frame: FrameType) -> None:
        """A module is about to be called, for which the hooks have come too late."""
        self._thread.muted = 0
        self._begin_slowly(module, args, frame)
        if module in self._changing:
            self._behind_pre_hooks(module, args, frame.f_locals.get("kwargs", {}))

    def _begin_slowly(self, module: nn.Module, args: tuple[object, ...], frame: FrameType) -> None:
        path = self._targets.members[module]
        calls, began = self._thread.calls, self._thread.frame
        if calls and began is not None and (path == ROOT or module is calls[0].module) and not is_below(frame, began):
            self._guard.run(self._abandon)
        if not calls:
            if not self._hears(module):
                return
            self._thread.frame = frame
            self._guard.run(self._begin_tracing, module, args, frame)
        self._guard.run(self._enter, module, args, frame.f_locals.get("kwargs", {}))

    def _hears(self, module: nn.Module) -> bool:
        """Whether an outermost call is read; one that checkpointing computes again belongs to another."""
        if torch._C._current_graph_task_id() == -1 and not self._evaluations.hears(module):
            self._thread.muted = 1
        return not self._thread.muted

    def _after(self, module: nn.Module, args: object, output: object) -> None:
        """Called after the forward, also when it raised: then with None, as for a module that gives nothing."""
        if is_recorded_by_others() or module not in self._targets.members:
            return
        if self._thread.muted:
            self._thread.muted -= 1
            return
        calls = self._thread.calls
        if len(calls) > 1 and calls[-1].module is module and module not in self._read:
            self._guard.calls += 1
            call = calls.pop()
            if call.is_new and output is not None:
                self._guard.run(self._structure.complete, (call.site, call.parent), tensors_in(output, "output"))
            return
        self._guard.run(self._leave, module, output)
        if not calls and self._thread.order:
            self._end_tracing(output, sys._getframe(1))

    def _abandon(self) -> None:
        """Forget a forward that was interrupted, of which hooks do not hear."""
        thread = self._thread
        if thread.forward is not None:
            thread.forward.leave()
        if thread.order:
            self._structure.note(thread.order, None, is_whole=False, context=self._contexts.current)
        for call in thread.calls:
            self._leave_behind(call)
        for left in (thread.calls, thread.counts, thread.told):
            left.clear()
        thread.order = []
        thread.forward = thread.frame = None

    def _begin_tracing(self, module: nn.Module, args: tuple[object, ...], frame: FrameType) -> None:
        is_fused = may_take_fused_path(module, args, frame.f_locals.get("kwargs", {}))  # but not with a mode in place
        if torch._C._current_graph_task_id() == -1 and not is_fused:
            self._thread.forward = self._structure.begin(module, self._targets.members)
            if self._thread.forward is not None:
                self._thread.forward.begin(args, frame)

    def _end_tracing(self, output: object, frame: FrameType) -> None:
        """End the outermost call, of which everything else was taken."""
        thread = self._thread
        if thread.calls or not thread.order:
            return
        order, thread.order = thread.order, []
        forward, thread.forward = thread.forward, None
        self._guard.run(self._note_order, order, forward, output, frame)

    def _note_order(self, order: list[Key], forward: TracedForward | None, output: object, frame: FrameType) -> None:
        if forward is not None:
            forward.end(output, frame)
        self._structure.note(order, forward, is_whole=output is not None, context=self._contexts.current)

    def enter(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A module of a model with compiled parts is about to be called."""
        if self._thread.muted:
            self._thread.muted += 1
        elif self._thread.calls or self._hears(module):
            self._guard.run(self._enter, module, args, kwargs)

    def leave(self, module: nn.Module, output: object) -> None:
        """A module of a model with compiled parts was called."""
        if self._thread.muted:
            self._thread.muted -= 1
        else:
            self._guard.run(self._leave, module, output)

    def told(self, module: nn.Module, port: str, tensor: Tensor) -> None:
        """A module in a compiled region took or gave a tensor."""
        if not self._thread.muted:
            self._guard.run(self._take_told, module, port, tensor)

    def _begin(self, module: nn.Module) -> Call:
        """Count a call of a module of the model."""
        thread = self._thread
        count = thread.counts[module] = thread.counts.get(module, 0) + 1
        self.called.add(module)
        around = thread.calls[-1] if thread.calls else None
        call = Call(module, numbered(self._targets.members[module], count), around.site if around else "")
        if call.again and around is None:  # in the context it had, and not in that of the backward
            call.before = self._contexts.enter("")
        call.context = self._contexts.current
        thread.calls.append(call)
        if self._replaceable and not call.again:
            key = call.site, call.parent
            thread.order.append(key)
            call.is_new = self._structure.lacks(key)
        return call

    def _add_call(self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Add a call to the graph, which lacks it."""
        self._structure.add_call((call.site, call.parent), self._targets.members[call.module], inputs_in(args, kwargs))

    def _enter(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if module not in self._targets.members:  # no longer part of the model
            return
        call = self._begin(module)
        if call.is_new:
            self._add_call(call, args, kwargs)
        if not call.parent and self._replaceable and not call.again:
            self._structure.add_edges(self._roots.edges_into(call.site, inputs_in(args, kwargs)))
        if module not in self._read:
            return
        if module not in self._changing:
            self._take_inputs(call, args, kwargs)
        if self._replaceable and module._forward_hooks:
            self._wait_behind(call)

    def _take_inputs(self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Read what goes into a module."""
        if not self._inputs:
            return
        values, gradients = Kind.INPUT in self._targets.kinds, self._gradients.wanted(Kind.INPUT_GRAD)
        for port, tensor in inputs_in(args, kwargs):
            if values and not call.again:
                self._intake.add(tensor, call.place(port, Kind.INPUT))
            if gradients and tensor.requires_grad and torch.is_grad_enabled():
                call.inputs.append((edge_of(tensor), call.place(port, Kind.INPUT_GRAD, Phase.BACKWARD)))

    def _leave(self, module: nn.Module, output: object) -> None:
        calls = self._thread.calls
        if output is None or not calls or not calls[-1].waits or calls[-1].module is not module:
            self._end(module, output)  # else its own hooks still have their turn

    def _wait_behind(self, call: Call) -> None:
        """Have a hook of ours run behind the module's own when this call ends."""
        call.waits = True
        with self._lock:
            handle, waiting = self._behind.get(call.module, (None, 0))
            handle = handle or call.module.register_forward_hook(Hook(self._behind_hooks))
            self._behind[call.module] = handle, waiting + 1

    def _leave_behind(self, call: Call) -> None:
        """Take that hook away, unless another call waits for it; and leave the context of the call."""
        if call.before is not None:
            self._contexts.leave(call.before)
        if not call.waits:
            return
        with self._lock:
            if call.module in self._behind:
                handle, waiting = self._behind.pop(call.module)
                if waiting > 1:
                    self._behind[call.module] = handle, waiting - 1
                else:
                    handle.remove()

    def _end(self, module: nn.Module, output: object) -> None:
        thread = self._thread
        calls = thread.calls
        while calls and calls[-1].module is not module:  # left by an error that no hook heard of
            self._leave_behind(calls.pop())
        if calls:
            call = calls.pop()
            self._leave_behind(call)
            self._take_outputs(call, output)
        if not calls:  # calls are numbered within one outermost call
            self._gradients.when_forwarded()
            thread.counts.clear()
            thread.told.clear()
            thread.frame = None

    def _take_outputs(self, call: Call, output: object) -> None:
        """Read what came out of a module."""
        chosen, around = call.module in self._read, self._thread.calls
        if not chosen and around and not call.is_new:
            return
        tensors = list(tensors_in(output, "output"))
        if call.is_new and output is not None:
            self._structure.complete((call.site, call.parent), tensors)
        if not around and self._replaceable and not call.again:
            self._roots.give(call.site, tensors)
        if chosen and Kind.OUTPUT in self._targets.kinds and not call.again:
            for port, tensor in tensors:
                self._intake.add(tensor, call.place(port, Kind.OUTPUT))
        if not around and not call.again:
            for port, tensor in tensors:
                if tensor.requires_grad:
                    self._gradients.notice(tensor, call.place(port, Kind.OUTPUT), call.first_node)
        if chosen and (call.inputs or self._gradients.wanted(Kind.OUTPUT_GRAD)):
            self._take_gradients(call, [(port, tensor) for port, tensor in tensors if tensor.requires_grad])

    def _take_gradients(self, call: Call, outputs: list[tuple[str, Tensor]]) -> None:
        """Have the gradients read that will flow back to a module and through it."""
        if self._gradients.wanted(Kind.OUTPUT_GRAD):
            for port, tensor in outputs:
                self._gradients.follow(tensor, call.place(port, Kind.OUTPUT_GRAD, Phase.BACKWARD))
        if call.inputs:
            self._gradients.through(call.inputs, [tensor for _, tensor in outputs], call.first_node, call.inside)
        around = self._thread.calls
        if around:
            around[-1].inside |= call.inside

    def _take_told(self, module: nn.Module, port: str, tensor: Tensor) -> None:
        counts, path = self._thread.told, self._targets.members[module]
        count = counts[module, port] = counts.get((module, port), 0) + 1
        site = numbered(path, count)
        kind = Kind.INPUT if port.startswith("input") else Kind.OUTPUT
        if module in self._targets.modules and kind in self._targets.kinds:
            mode = Mode.TRAIN if module.training else Mode.EVAL
            self._intake.add(tensor, SeriesKey(site, port, kind, mode, Phase.FORWARD, self._contexts.current))
        self.called.add(module)
        if path == ROOT and kind is Kind.OUTPUT and not self._thread.calls:
            counts.clear()

    def _behind_pre_hooks(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """The module's own hooks have had their turn with what goes in."""
        calls = self._thread.calls
        if calls and calls[-1].module is module and not is_recorded_by_others():
            self._guard.run(self._take_inputs, calls[-1], args, kwargs)

    def _behind_hooks(self, module: nn.Module, args: object, output: object) -> None:
        """The module's own hooks have had their turn with what comes out."""
        if module in self._behind and not is_recorded_by_others():
            self._guard.run(self._end, module, output)
            self._end_tracing(output, sys._getframe(1))
