"""Reads what goes into modules and comes out of them, at the sites of their calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from layerscope.capture.core.call_graph import CallGraphRecorder, CallStack, NodePort, OutermostCalls, TracedCall
from layerscope.capture.core.contexts import Contexts, ContextState, Evaluations
from layerscope.capture.core.framework import ForwardOperations, Framework, GradientEdge, Port, Targets, Tensor
from layerscope.capture.core.gradients import Consumers, GradientFlow, GradientReader
from layerscope.capture.core.guard import ListenerGuard
from layerscope.capture.core.summarizer import SeriesKey
from layerscope.model.patterns import ROOT
from layerscope.model.records import Kind, Mode, Phase, call_site


class Call(TracedCall):
    """One call of a module of the model, in progress."""

    parent: Call | None
    context = ""  # the name that the training loop gave the forward
    before: ContextState | None = None  # the context to go back to, of a call that is computed again
    is_new = False  # whether the graph of calls lacks it
    again = False  # checkpointing computes it a second time, in a backward: its values were read before
    first_node = 0  # the number of the first node of the autograd graph that is made inside
    waits = False  # for the module's own hooks, which may replace what comes out
    inputs: Sequence[tuple[GradientEdge, SeriesKey]] = ()
    inside: dict[Consumers, GradientFlow] | None = None  # gradients that flow through the modules inside

    def key_of(self, port: str, kind: Kind, phase: Phase = Phase.FORWARD) -> SeriesKey:
        """The series of a tensor that the call takes or gives, or of its gradient, but for the number format."""
        mode = Mode.TRAIN if self.module.training else Mode.EVAL
        return SeriesKey(self.site, port, kind, mode, phase, self.context)


class Thread(threading.local):
    """The calls in progress on one thread, numbered within the outermost of them."""

    def __init__(self) -> None:
        self.stack = CallStack[Call]()
        self.order: list[TracedCall] = []  # the calls inside the outermost one so far, and tensors named in them
        self.operations: ForwardOperations | None = None  # of the outermost call, while they are traced
        self.frame: FrameType | None = None  # where the outermost module was called, while it runs
        self.muted = 0  # calls in progress that are not read: a forward, and those inside it


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


class LateHooks:
    """Hooks of the user on a module that run behind ours, and may replace what it takes or gives: here, none do."""

    def change_inputs(self, module: Any) -> bool:
        """Whether the module's hooks may change what goes in: then `Forwards.read_inputs` is called behind them."""
        return False

    def change_outputs(self, module: Any) -> bool:
        """Whether the module's hooks may change what comes out."""
        return False

    def wait(self, call: Call) -> None:
        """Have `Forwards.leave_late` called behind them when the call ends."""

    def leave(self, call: Call) -> None:
        """The call is over."""


class Forwards:
    """Reads inputs and outputs of the chosen modules, and has their gradients read.

    A framework's hooks call `before_module` and `after_module` for each module; `enter` and `leave` where modules are
    compiled, so that the graph of calls cannot be known.
    """

    def __init__(
        self,
        gradients: GradientReader,
        guard: ListenerGuard,
        graph: CallGraphRecorder,
        contexts: Contexts,
        evaluations: Evaluations,
    ) -> None:
        self._summarizer = gradients.summarizer
        self._framework: Framework = gradients.summarizer.framework
        self._contexts = contexts
        self._gradients = gradients
        self._guard = guard
        self._graph = graph
        self._evaluations = evaluations
        self._outermost = OutermostCalls(self._framework)
        self._thread = Thread()
        self._read: Mapping[Any, str] = {}  # modules whose inputs or outputs are recorded
        self._inputs = False  # whether anything is read of what goes in
        self.has_graph = True  # whether calls are added to the graph of calls
        self.late = LateHooks()
        self.called = weakref.WeakSet[Any]()

    def start_over(self, targets: Targets) -> None:
        """Forget the step."""
        self.targets = targets
        self._read = targets.modules if targets.kinds & OF_MODULES else {}
        self._inputs = Kind.INPUT in targets.kinds or self._gradients.wants(Kind.INPUT_GRAD)
        if self._thread.stack.current is not None or self._thread.operations is not None:
            self._abandon()
        self._graph.start_over()
        self._outermost.start_over()
        self._thread = Thread()
        self.called.clear()

    @property
    def read(self) -> Mapping[Any, str]:
        """The modules whose inputs or outputs are recorded."""
        return self._read

    @property
    def is_muted(self) -> bool:
        """Whether the call in progress on this thread is not read."""
        return self._thread.muted > 0

    @property
    def current(self) -> Call | None:
        """The call in progress on this thread."""
        return self._thread.stack.current

    def name(self, tensor: Tensor, name: str) -> None:
        """Read a tensor that the user named, and its gradient."""
        call = self._thread.stack.current
        if self._thread.muted or (call is None and self._framework.backward() != -1):
            return  # the latter is computed again, and who called it is not known
        if call is not None:
            name = call_site(name, self._thread.stack.count((call, name)))
        site = name if call is None or call.site == ROOT else f"{call.site}.{name}"
        if call is not None and self.has_graph and not call.again:
            self._add_named(call, tensor, site)
        mode = Mode.TRAIN if call is None or call.module.training else Mode.EVAL
        key = SeriesKey(site, "tensor", Kind.TENSOR, mode, Phase.FORWARD, self._contexts.current)
        if Kind.TENSOR in self.targets.kinds and (call is None or not call.again):
            self._summarizer.add(tensor, key)
        if Kind.TENSOR_GRAD in self.targets.kinds and self._framework.requires_grad(tensor):
            self._gradients.follow(tensor, key._replace(kind=Kind.TENSOR_GRAD, phase=Phase.BACKWARD))

    def _add_named(self, around: Call, tensor: Tensor, site: str) -> None:
        """Add a tensor that was named inside a call to the graph."""
        named = TracedCall(around.module, site, 1, around)
        ports = [Port("tensor", tensor)]
        self._thread.order.append(named)
        if self._graph.lacks(named.key):
            self._graph.add_call(named.key, around.path, ports)
            self._graph.complete(named.key, ports)
        if self._thread.operations is not None:
            named.begin = named.end = len(self._thread.operations)
            named.sources = named.targets = self._node_ports(ports)
            around.children.append(named)

    def before_module(self, module: Any, args: tuple[object, ...], frame: FrameType) -> None:
        """A module is about to be called; `frame` is that of the call, which holds `kwargs`."""
        path, thread = self.targets.members.get(module), self._thread
        if path is None:
            return
        if thread.muted:
            thread.muted += 1
        elif (
            thread.operations is None
            and path != ROOT
            and thread.stack.current is not None
            and not (module in self._read and (self._inputs or self.late.change_outputs(module)))
        ):  # quickly: of most there is nothing to read
            self._guard.calls += 1
            call = self._begin(module, path)
            if call.is_new:
                self._guard.run(self._add_call, call, args, frame.f_locals.get("kwargs", {}))
        else:
            self._begin_slowly(module, path, args, frame)

    def begin_late(self, module: Any, args: tuple[object, ...], frame: FrameType) -> None:
        """A module is about to be called, for which the hooks have come too late."""
        self._thread.muted = 0
        self._begin_slowly(module, self.targets.members[module], args, frame)
        if self.late.change_inputs(module):
            self.read_inputs(module, args, frame.f_locals.get("kwargs", {}))

    def _begin_slowly(self, module: Any, path: str, args: tuple[object, ...], frame: FrameType) -> None:
        thread, kwargs = self._thread, frame.f_locals.get("kwargs", {})
        began, outermost = thread.frame, thread.stack.outermost
        is_outermost = outermost is not None and (path == ROOT or module is outermost.module)
        if is_outermost and began is not None and not is_below(frame, began):
            self._guard.run(self._abandon)
        if thread.stack.current is None:
            if not self._reads(module):
                return
            thread.frame = frame
            self._guard.run(self._begin_tracing, module, args, kwargs, frame)
        self._guard.run(self._enter, module, args, kwargs)

    def _begin_tracing(
        self, module: Any, args: tuple[object, ...], kwargs: Mapping[str, object], frame: FrameType
    ) -> None:
        if self.has_graph and self._framework.backward() == -1 and self._graph.wants_trace():
            self._thread.operations = self._framework.trace_forward(module, args, kwargs, frame)
            self._graph.traced += self._thread.operations is not None

    def _reads(self, module: Any) -> bool:
        """Whether an outermost call is read; one that checkpointing computes again belongs to another."""
        if self._framework.backward() == -1 and not self._evaluations.reads(module):
            self._thread.muted = 1
        return not self._thread.muted

    def after_module(self, module: Any, output: object, frame: FrameType) -> None:
        """A module was called, or raised: then with None, as for a module that gives nothing."""
        if module not in self.targets.members:
            return
        thread = self._thread
        if thread.muted:
            thread.muted -= 1
            return
        call = thread.stack.current
        is_inner = call is not None and call.parent is not None and call.module is module
        if is_inner and module not in self._read and thread.operations is None:
            self._guard.calls += 1
            call = thread.stack.leave()
            if call.is_new and output is not None:
                self._guard.run(self._complete, call, output)
            return
        self._guard.run(self._leave, module, output)
        self._end_forward(output)

    def _abandon(self) -> None:
        """Forget a forward that was interrupted, which hooks are not called for."""
        thread = self._thread
        if thread.operations is not None:
            thread.operations.leave()
        if thread.order:
            self._graph.note(thread.order, None, is_whole=False, context=self._contexts.current)
        for call in thread.stack:
            self._leave_context(call)
        thread.stack, thread.order = CallStack[Call](), []
        thread.operations = thread.frame = None

    def _end_forward(self, output: object) -> None:
        """The outermost call is over, and everything else was read."""
        thread = self._thread
        if thread.stack.current is None and thread.order:
            order, thread.order = thread.order, []
            operations, thread.operations = thread.operations, None
            self._guard.run(self._note_order, order, operations, output)

    def _note_order(self, order: list[TracedCall], operations: ForwardOperations | None, output: object) -> None:
        if operations is not None:
            operations.leave()
        self._graph.note(order, operations, is_whole=output is not None, context=self._contexts.current)
        for call in order if operations is not None else ():
            call.children = []  # they are a cycle, which would keep modules alive

    def enter(self, module: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A module of a model with compiled parts is about to be called."""
        if self._thread.muted:
            self._thread.muted += 1
        elif self._thread.stack.current is not None or self._reads(module):
            self._guard.run(self._enter, module, args, kwargs)

    def leave(self, module: Any, output: object) -> None:
        """A module of a model with compiled parts was called."""
        if self._thread.muted:
            self._thread.muted -= 1
        else:
            self._guard.run(self._leave, module, output)

    def leave_late(self, module: Any, output: object) -> None:
        """A module was called, and its own hooks have had their turn with what comes out."""
        self._guard.run(self._end, module, output)
        self._end_forward(output)

    def read_compiled(self, module: Any, port: str, tensor: Tensor) -> None:
        """A module in a compiled region took or gave a tensor."""
        if not self._thread.muted:
            self._guard.run(self._read_compiled, module, port, tensor)

    def _begin(self, module: Any, path: str) -> Call:
        """Count a call of a module of the model."""
        thread = self._thread
        around = thread.stack.current
        call = Call(module, path, thread.stack.count(module), around)
        self.called.add(module)
        call.again = self._framework.backward() != -1
        call.first_node = self._framework.next_node()
        if call.again and around is None:  # in the context it had, and not in that of the backward
            call.before = self._contexts.enter("")
        call.context = self._contexts.current
        thread.stack.enter(call)
        if self.has_graph and not call.again:
            thread.order.append(call)
            call.is_new = self._graph.lacks(call.key)
        return call

    def _add_call(self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Add a call to the graph, which lacks it."""
        self._graph.add_call(call.key, call.path, self._framework.inputs(args, kwargs))

    def _complete(self, call: Call, output: object) -> None:
        self._graph.complete(call.key, self._framework.ports(output, "output"))

    def _node_ports(self, ports: Sequence[Port]) -> list[NodePort]:
        operations = self._thread.operations
        assert operations is not None
        return [NodePort(name, operations.node_of(tensor)) for name, tensor in ports]

    def _enter(self, module: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        path, operations = self.targets.members.get(module), self._thread.operations
        if path is None:  # no longer part of the model
            return
        call = self._begin(module, path)
        if call.is_new:
            self._add_call(call, args, kwargs)
        if operations is not None:
            call.begin, call.children = len(operations), []
            call.sources = self._node_ports(list(self._framework.inputs(args, kwargs)))
        if call.parent is None and self.has_graph and not call.again:
            self._graph.add_edges(self._outermost.edges_into(call.site, self._framework.inputs(args, kwargs)))
        if module not in self._read:
            return
        if not self.late.change_inputs(module):
            self._read_inputs(call, args, kwargs)
        if self.late.change_outputs(module):
            call.waits = True
            self.late.wait(call)

    def read_inputs(self, module: Any, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """The module's own hooks have had their turn with what goes in."""
        call = self._thread.stack.current
        if call is not None and call.module is module:
            self._guard.run(self._read_inputs, call, args, kwargs)

    def _read_inputs(self, call: Call, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Read what goes into a module."""
        if not self._inputs:
            return
        framework, values = self._framework, Kind.INPUT in self.targets.kinds
        gradients = self._gradients.wants(Kind.INPUT_GRAD) and framework.is_grad_enabled()
        edges: list[tuple[GradientEdge, SeriesKey]] = []
        for port, tensor in framework.inputs(args, kwargs):
            if values and not call.again:
                self._summarizer.add(tensor, call.key_of(port, Kind.INPUT))
            if gradients and framework.requires_grad(tensor):
                edges.append((framework.edge(tensor), call.key_of(port, Kind.INPUT_GRAD, Phase.BACKWARD)))
        call.inputs = edges

    def _leave(self, module: Any, output: object) -> None:
        call = self._thread.stack.current
        if output is None or call is None or not call.waits or call.module is not module:
            self._end(module, output)  # else its own hooks still have their turn

    def _leave_context(self, call: Call) -> None:
        """Leave the context of a call that is over, and what waits behind its module's hooks."""
        if call.before is not None:
            self._contexts.leave(call.before)
        if call.waits:
            self.late.leave(call)

    def _end(self, module: Any, output: object) -> None:
        thread = self._thread
        stack = thread.stack
        while stack.current is not None and stack.current.module is not module:  # left by an error, without a hook
            self._leave_context(stack.leave())
        if stack.current is not None:
            call = stack.leave()
            self._leave_context(call)
            self._read_outputs(call, output)
        if stack.current is None:  # calls are numbered within one outermost call
            self._gradients.when_forwarded()
            stack.start_over()
            thread.frame = None

    def _read_outputs(self, call: Call, output: object) -> None:
        """Read what came out of a module."""
        is_chosen, is_outermost, operations = call.module in self._read, call.parent is None, self._thread.operations
        if not (is_chosen or is_outermost or call.is_new or operations is not None):
            return
        outputs = list(self._framework.ports(output, "output"))
        if call.is_new and output is not None:
            self._graph.complete(call.key, outputs)
        if operations is not None:
            self._place_in(operations, call, outputs)
        if is_outermost and self.has_graph and not call.again:
            self._outermost.give(call.site, outputs)
        if is_chosen and Kind.OUTPUT in self.targets.kinds and not call.again:
            for port, tensor in outputs:
                self._summarizer.add(tensor, call.key_of(port, Kind.OUTPUT))
        with_grad = [port for port in outputs if self._framework.requires_grad(port.tensor)]
        if is_outermost and not call.again:
            for port, tensor in with_grad:
                self._gradients.notice(tensor, call.key_of(port, Kind.OUTPUT), call.first_node)
        if is_chosen and (call.inputs or self._gradients.wants(Kind.OUTPUT_GRAD)):
            self._follow_gradients(call, with_grad)

    def _place_in(self, operations: ForwardOperations, call: Call, outputs: Sequence[Port]) -> None:
        """Note which operations a call was made of."""
        call.targets, call.end = self._node_ports(outputs), len(operations)
        if call.parent is not None:
            call.parent.children.append(call)

    def _follow_gradients(self, call: Call, outputs: Sequence[Port]) -> None:
        """Have the gradients read that will flow back to a module and through it."""
        if self._gradients.wants(Kind.OUTPUT_GRAD):
            for port, tensor in outputs:
                self._gradients.follow(tensor, call.key_of(port, Kind.OUTPUT_GRAD, Phase.BACKWARD))
        flows, around = call.inside or {}, call.parent
        if call.inputs:
            self._gradients.through(call.inputs, [tensor for _, tensor in outputs], call.first_node, flows)
        if around is not None and around.inside:
            around.inside.update(flows)
        elif around is not None:
            around.inside = flows
        call.inputs, call.inside = (), None

    def _read_compiled(self, module: Any, port: str, tensor: Tensor) -> None:
        stack, path = self._thread.stack, self.targets.members[module]
        site = call_site(path, stack.count((module, port)))
        kind = Kind.INPUT if port.startswith("input") else Kind.OUTPUT
        if module in self.targets.modules and kind in self.targets.kinds:
            mode = Mode.TRAIN if module.training else Mode.EVAL
            self._summarizer.add(tensor, SeriesKey(site, port, kind, mode, Phase.FORWARD, self._contexts.current))
        self.called.add(module)
        if path == ROOT and kind is Kind.OUTPUT and stack.current is None:
            stack.start_over()
