"""The graph of the model's calls, seen by tracing one forward now and then.

The first recorded forward is traced, and the next one whenever the modules were called in an order not seen before, so
that control flow adds to the graph. Any other forward is only listened to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import FrameType

from torch import Tensor, nn

from layerscope.capture.callgraph import CallSeen, Made, Port, call_nodes, edges
from layerscope.capture.torch.forgiving import ForgivingTracer
from layerscope.capture.torch.targets import numbered
from layerscope.capture.torch.tensors import inputs_in, tensors_in
from layerscope.capture.torch.trace.modulecalls import ModuleCall, switchboard
from layerscope.records import CallNode, Edge

MOST_TRACED = 24  # a model that never does the same twice is not traced for ever


class TracedForward:
    """One traced forward: listens beside the tracer, and knows what each call takes and gives by its ports."""

    def __init__(self, model: nn.Module, members: Mapping[nn.Module, str]) -> None:
        self.tracer = ForgivingTracer(model)
        self._members = members
        self._numbers: Counter[str] = Counter()
        self._calls: list[CallSeen] = []
        self._open: list[CallSeen] = []
        self._owner: dict[int, CallSeen] = {}  # by the tracer's number of the call

    def begin(self, args: tuple[object, ...], frame: FrameType) -> None:
        """The model is about to be called."""
        model = self.tracer.model
        assert model is not None
        switchboard.connect(self)  # before the tracer: it then hears of the end of a call after it
        self.tracer.__enter__()
        number = len(self.tracer.calls)
        self.tracer.before_module(model, args, frame)  # makes the inputs known
        self.tracer.attempt(self._enter, model, args, frame, number)

    def end(self, output: object, frame: FrameType) -> None:
        """The model was called."""
        model = self.tracer.model
        assert model is not None
        self.tracer.after_module(model, output, frame)
        self.after_module(model, output, frame)
        self.leave()

    def leave(self) -> None:
        """Stop listening."""
        self.tracer.__exit__()
        switchboard.disconnect(self)

    def before_module(self, module: nn.Module, args: tuple[object, ...], frame: FrameType) -> None:
        """A module is about to be called."""
        if self.tracer.ops.is_looking():
            self.tracer.attempt(self._enter, module, args, frame, len(self.tracer.calls))

    def _enter(self, module: nn.Module, args: tuple[object, ...], frame: FrameType, number: int) -> None:
        path = self._members.get(module)
        if path is None:
            return
        self._numbers[path] += 1
        call = CallSeen(
            numbered(path, self._numbers[path]),
            path,
            self._open[-1] if self._open else None,
            len(self.tracer.ops.nodes),
        )
        call.inputs = self._ports(inputs_in(args, frame.f_locals.get("kwargs", {})))
        self._owner[number] = call
        self._calls.append(call)
        self._open.append(call)

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """A module was called."""
        self.tracer.attempt(self._leave, module, result)

    def _leave(self, module: nn.Module, result: object) -> None:
        path = self._members.get(module)
        if path is None or not self._open or self._open[-1].path != path:
            return
        call = self._open.pop()
        call.outputs = self._ports(tensors_in(result, "output"))
        self._finish(call)

    def name(self, tensor: Tensor, site: str) -> None:
        """A tensor was named inside the call in progress."""
        if self._open:
            around = self._open[-1]
            call = CallSeen(site, around.path, around, len(self.tracer.ops.nodes))
            call.inputs = call.outputs = self._ports([("tensor", tensor)])
            self._calls.append(call)
            self._finish(call)

    def _finish(self, call: CallSeen) -> None:
        call.end = len(self.tracer.ops.nodes)
        if call.parent is not None:
            call.parent.children.append(call)

    def _ports(self, named: Iterable[tuple[str, Tensor]]) -> list[Port]:
        node_of = self.tracer.graph.memory.node_of
        return [Port(name, tuple(tensor.shape), node_of(tensor)) for name, tensor in named]

    def graph(self) -> tuple[tuple[CallNode, ...], tuple[Edge, ...]]:
        """What was seen."""
        owners = [self._owner_of(call) for call in self.tracer.calls]
        made = [Made(owners[row[5]], row[3][1::2]) for row in self.tracer.ops.nodes.rows]
        return tuple(call_nodes(self._calls)), tuple(dict.fromkeys(edges(self._calls, made)))

    def _owner_of(self, call: ModuleCall) -> CallSeen | None:
        """The call of a module of the model: this one, or the one around a module of somebody else's."""
        mine = self._owner.get(call.index)
        return self._owner_of(call.parent) if mine is None and call.parent is not None else mine


class Structure:
    """Decides which forward is traced, and hands over what is new in the graph."""

    def __init__(
        self, put: Callable[[tuple[CallNode, ...], tuple[Edge, ...]], None], report: Callable[[str], None]
    ) -> None:
        self._put = put
        self._report = report
        self._connected = False
        self._orders: set[int] = set()  # in which modules were called in traced forwards
        self._wanted = True
        self._traced = 0
        self._known: set[CallNode | Edge] = set()

    def open(self) -> None:
        """Make ready for a step.

        A tracer takes its hooks away when its forward has ended, which torch does not bear inside a hook when the
        forward raised. While somebody else wants them they stay.
        """
        if self._wanted and self._traced < MOST_TRACED and not self._connected:
            self._connected = True
            switchboard.connect(self)

    def close(self) -> None:
        """End the step."""
        if self._connected:
            self._connected = False
            switchboard.disconnect(self)

    def before_module(self, module: nn.Module, args: tuple[object, ...], frame: FrameType) -> None:
        """Nothing: whoever traces listens for itself."""

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """Nothing: whoever traces listens for itself."""

    def begin(self, model: nn.Module, members: Mapping[nn.Module, str]) -> TracedForward | None:
        """The tracing of the forward that is about to begin, if it is wanted."""
        if not self._wanted or not self._connected:
            return None
        self._traced += 1
        self._wanted = False
        return TracedForward(model, members)

    def note(self, order: int) -> None:
        """A forward has called its modules in an order of this hash."""
        self._wanted = order not in self._orders

    def take(self, forward: TracedForward, order: int) -> None:
        """Take in a traced forward that has ended."""
        self._orders.add(order)
        trouble = forward.tracer.ops.trouble
        if trouble is not None:
            self._traced = MOST_TRACED
            self._report(f"How data flows between the modules is not recorded: {type(trouble).__name__}: {trouble}")
            return
        calls, found = forward.graph()
        new_calls = tuple(call for call in calls if call not in self._known)
        new_edges = tuple(edge for edge in found if edge not in self._known)
        if new_calls or new_edges:
            self._known.update(new_calls, new_edges)
            self._put(new_calls, new_edges)
