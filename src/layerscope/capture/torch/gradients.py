"""Gradients as they flow back: of an output in all, and of an input what comes through its module.

Hooks are put on nodes of the autograd graph, which live and die with it; no node is added and no tensor touched.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from layerscope.capture.torch.guard import Guard
from layerscope.capture.torch.intake import Intake, Place
from layerscope.capture.torch.shards import local_part
from layerscope.records import Kind
from layerscope.stats.torch import is_oversized, is_wrapper

_NORM = {Kind.INPUT_GRAD: Kind.INPUT_GRAD_NORM, Kind.OUTPUT_GRAD: Kind.OUTPUT_GRAD_NORM}
Edge = tuple[Node, int]
Consumers = frozenset[tuple[Node, int]]  # nodes, and which of their inputs


class Flow:
    """The gradient of one input as it comes through a module: the sum over the nodes that used the input inside."""

    __slots__ = ("arrived", "expected", "places", "total")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.places: list[Place] = []
        self.arrived = 0
        self.total: Tensor | None = None


class Gradients:
    """Reads gradients of the chosen kinds while backward runs, in the step in which their tensors were made."""

    def __init__(self, intake: Intake, guard: Guard, kinds: frozenset[Kind]) -> None:
        self.intake = intake
        self._guard = guard
        self._kinds = kinds
        self._step = 0  # a graph may outlive its step: its hooks then do nothing
        self._followed: dict[int, tuple[weakref.ref[Tensor], int, list[Place]]] = {}
        self._on_leaves: list[RemovableHandle] = []
        self._backwards: dict[Place, tuple[int, int]] = {}  # a forward of each outermost module, and its backward
        self.arrived = False
        self.when_forwarded: Callable[[], None] = _nothing  # called when an outermost module was
        self.mixed = ""  # site of a module whose forwards belong to several backwards of the step

    def start_over(self) -> None:
        """Forget the step."""
        self._step += 1
        self.arrived = False
        self.mixed = ""
        self._backwards.clear()
        self._followed.clear()
        while self._on_leaves:
            self._on_leaves.pop().remove()

    def wanted(self, kind: Kind) -> bool:
        """Whether gradients of the kind, or their norms, are read."""
        return kind in self._kinds or _NORM.get(kind) in self._kinds

    def follow(self, tensor: Tensor, place: Place) -> None:
        """Read the tensor's whole gradient into its series, with every backward."""
        known = self._followed.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            known[2].append(place)
            return
        places = [place]
        self._followed[id(tensor)] = (weakref.ref(tensor), tensor._version, places)
        self.when_computed(tensor, self._emit, places)

    def notice(self, tensor: Tensor, place: Place, forward: int) -> None:
        """Note that a backward comes by, and whether forwards of one module belong to different ones."""
        self.when_computed(tensor, self._note_backward, place, forward)

    def _note_backward(self, gradient: Tensor, place: Place, forward: int) -> None:
        backward = torch._C._current_graph_task_id()
        first, its_backward = self._backwards.setdefault(place, (forward, backward))
        if first != forward and its_backward != backward:
            self.mixed = self.mixed or place.site

    def when_computed(self, tensor: Tensor, read: Callable[..., None], *known: object) -> None:
        """Have the function called with the tensor's whole gradient, and what is known, when a backward has it."""
        step, node, number = self._step, tensor.grad_fn, tensor.output_nr

        def listen(gradients: Sequence[Tensor | None]) -> None:
            gradient = gradients[number]
            if gradient is not None and step == self._step:
                self.arrived = True
                self._guard.run(read, gradient, *known)

        if node is None:  # a leaf, whose node lives only as long as somebody uses it
            self._on_leaves.append(tensor.register_hook(lambda gradient: listen((gradient,))))
        else:
            node.register_prehook(listen)

    def through(
        self, inputs: Sequence[tuple[Edge, Place]], outputs: Iterable[Tensor], first: int, known: dict[Consumers, Flow]
    ) -> None:
        """Read what flows back through a module to its inputs, whose edges are given as they were before it ran.

        `first` is the number that autograd gave the first node made inside; `known` are the flows of the modules
        inside, to which those of this one are added.
        """
        unchanged = {edge_of(tensor): tensor for tensor in outputs}
        places: dict[Edge, list[Place]] = {}
        for edge, place in inputs:
            if edge in unchanged:  # what comes out is what went in: there is nothing between
                self.follow(unchanged[edge], place)
            else:
                places.setdefault(edge, []).append(place)
        for edge, consumers in _consumers((node for node, _ in unchanged), places, first).items():
            flow = known.get(consumers)
            if flow is None:
                flow = known[consumers] = Flow(len(consumers))
                for node, number in consumers:
                    node.register_hook(self._arrival(flow, number))
            flow.places += places[edge]

    def _arrival(self, flow: Flow, number: int) -> Callable[[Any, Any], None]:
        step = self._step

        def listen(to_inputs: Sequence[Tensor | None], of_outputs: object) -> None:
            if step == self._step:
                self.arrived = True
                self._guard.run(self._add, flow, to_inputs[number])

        return listen

    def _add(self, flow: Flow, gradient: Tensor | None) -> None:
        flow.arrived += 1
        if gradient is not None:
            self._add_to(flow, gradient)
        if flow.arrived == flow.expected:
            self._complete(flow)
        elif flow.arrived == 1:  # some of the others may not take part in this backward
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._guard.run(self._complete, flow))

    def _add_to(self, flow: Flow, gradient: Tensor) -> None:
        if flow.total is None:
            flow.total = gradient
        elif not (is_wrapper(gradient) or is_wrapper(flow.total)):
            with torch.no_grad():
                flow.total = flow.total + gradient
        elif flow.places:  # to add up DTensors may mean to wait for other processes
            what = f"{flow.places[0].kind.value} of {flow.places[0].site!r}"
            self.intake.tell_once(what, f"{what} is not recorded: it is a sum of several {type(gradient).__name__}s.")
            flow.places = []

    def _complete(self, flow: Flow) -> None:
        total, flow.total, flow.arrived = flow.total, None, 0
        if total is not None:
            self._emit(total, flow.places)

    def _emit(self, gradient: Tensor, places: list[Place]) -> None:
        norms: Tensor | None = None
        part, local = local_part(gradient)
        for place in places:
            if place.kind in self._kinds:
                self.intake.add(gradient, place)
            norm = _NORM.get(place.kind)
            if norm in self._kinds and part.layout is torch.strided and not part.is_nested:
                assert norm is not None
                if is_oversized(part):
                    what = f"{norm.value} of {place.site!r}"
                    self.intake.tell_once(what, f"{what} is not recorded: the gradient is a view too large to copy.")
                    continue
                norms = (part if is_wrapper(part) else _per_sample(part)) if norms is None else norms
                self.intake.add(norms, place._replace(kind=norm, local=local))


def _nothing() -> None:
    pass


def edge_of(tensor: Tensor) -> Edge:
    """Where the tensor's gradient goes: a node of the autograd graph, and which of its outputs the tensor is."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn, tensor.output_nr
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _consumers(ends: Iterable[Node], inputs: dict[Edge, list[Place]], first: int) -> dict[Edge, Consumers]:
    """The nodes made since number `first` that used the inputs, found by walking back from the ends."""
    found: dict[Edge, list[tuple[Node, int]]] = {}
    waiting = list(ends) if inputs else []
    visited = set(waiting)
    while waiting:
        node = waiting.pop()
        for number, (source, output) in enumerate(node.next_functions):
            if source is None:
                continue
            if (source, output) in inputs:
                found.setdefault((source, output), []).append((node, number))
            elif source not in visited and source._sequence_nr() >= first:  # made inside: what is older lies outside
                visited.add(source)
                waiting.append(source)
    return {edge: frozenset(consumers) for edge, consumers in found.items()}


def _per_sample(gradient: Tensor) -> Tensor:
    """One norm for each sample: dimension 0 is the batch's."""
    with torch.no_grad():
        dtype = torch.float32 if gradient.dtype in (torch.float16, torch.bfloat16) else None
        flat = gradient.flatten(1) if gradient.dim() > 1 else gradient.reshape(-1, 1)
        norms: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=dtype)
        return norms
