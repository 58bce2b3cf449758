"""What each backward adds to the gradients of parameters, read before it is added to `.grad`.

Pre-hooks on the nodes that accumulate gradients see just that, after the parameter's own hooks and before any reduction
over processes; `torch.autograd.grad`, which accumulates nothing, passes them by.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from layerscope.capture.core.named_tensors import NamedTensor
from layerscope.capture.torch.hooks import ListenerGuard
from layerscope.capture.torch.summarizer import SeriesKey, Summarizer
from layerscope.capture.torch.tensor_tree import local_part
from layerscope.model.records import Kind
from layerscope.stats.torch import is_oversized, is_wrapper

Sums = dict[Tensor, Tensor]  # by parameter


class Contributions:
    """The sums of contributions to parameters' gradients: those whose loss is not known yet, and those of each loss.

    A contribution is held, not copied: autograd then makes `.grad` a copy, where it would have taken the tensor itself.
    """

    def __init__(self, guard: ListenerGuard, arrive: Callable[[], None]) -> None:
        self._guard = guard
        self._arrive = arrive  # called before a contribution is added to those that are waiting
        self._nodes: dict[Tensor, Node] = {}
        self._handles: list[RemovableHandle] = []
        self.waiting: Sums = {}
        self.of_loss: dict[str, Sums] = {}
        self.recorded: dict[Tensor, list[NamedTensor]] = {}  # parameters that were recorded by name in the step
        self.is_named: bool | None = None  # whether the training names its losses; None: not known yet

    def end_backwards(self) -> None:
        """An optimizer steps, or the step ends: a training that has named no loss by then does not name any."""
        if self.is_named is None:
            self.is_named = False
        if not (self.is_named or self.recorded):
            self.start_over()

    def start_over(self) -> None:
        """Forget the step, and take every hook away."""
        self.recorded.clear()
        self._nodes.clear()
        while self._handles:
            self._handles.pop().remove()
        self.waiting, self.of_loss = {}, {}

    def follow(self, parameters: Iterable[Tensor]) -> None:
        """Hear of the parameters' gradients for the rest of the step."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return  # vmap and grad build graphs of their own, in which a parameter has no node
        for parameter in parameters:
            if parameter.requires_grad and parameter.is_leaf and not (is_lazy(parameter) or is_wrapper(parameter)):
                with torch.inference_mode(mode=False):  # in which nothing has a node
                    node, _ = edge_of(parameter)
                if self._nodes.get(parameter) is not node:
                    self._nodes[parameter] = node  # which lives only as long as somebody holds it
                    self._handles.append(node.register_prehook(partial(self._hear, parameter)))

    def look_again(self) -> None:
        """Follow the same parameters by the nodes they have now: `.double()` replaces them, for one."""
        self.follow(list(self._nodes))

    def name(self, loss: str) -> Sums:
        """Count what is waiting as of a loss, and give it."""
        named, self.waiting = self.waiting, {}
        if named:
            total = self.of_loss.setdefault(loss, {})
            for parameter, gradient in named.items():
                _add(total, parameter, gradient)
        return named

    def _hear(self, parameter: Tensor, gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None:
            self._guard.run(self._take, parameter, gradients[0])

    def _take(self, parameter: Tensor, gradient: Tensor) -> None:
        self._arrive()
        _add(self.waiting, parameter, gradient.detach().clone() if gradient.requires_grad else gradient)


def _add(sums: Sums, parameter: Tensor, gradient: Tensor) -> None:
    """Checkpointing may bring several parts of one gradient, and several micro-batches are of one loss."""
    with torch.no_grad():
        sums[parameter] = sums[parameter] + gradient if parameter in sums else gradient


_NORM = {Kind.INPUT_GRAD: Kind.INPUT_GRAD_NORM, Kind.OUTPUT_GRAD: Kind.OUTPUT_GRAD_NORM}
Edge = tuple[Node, int]
Consumers = frozenset[tuple[Node, int]]  # nodes, and which of their inputs


class GradientFlow:
    """The gradient of one input as it comes through a module: the sum over the nodes that used the input inside."""

    __slots__ = ("arrived", "expected", "places", "total")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.places: list[SeriesKey] = []
        self.arrived = 0
        self.total: Tensor | None = None


class GradientHooks:
    """Reads gradients of the chosen kinds while backward runs, in the step in which their tensors were made."""

    def __init__(self, intake: Summarizer, guard: ListenerGuard, kinds: frozenset[Kind]) -> None:
        self.intake = intake
        self._guard = guard
        self._kinds = kinds
        self._step = 0  # a graph may outlive its step: its hooks then do nothing
        self._followed: dict[int, tuple[weakref.ref[Tensor], int, list[SeriesKey]]] = {}
        self._on_leaves: list[RemovableHandle] = []
        self._backwards: dict[SeriesKey, tuple[int, int]] = {}  # a forward of each outermost module, and its backward
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

    def follow(self, tensor: Tensor, place: SeriesKey) -> None:
        """Read the tensor's whole gradient into its series, with every backward."""
        known = self._followed.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            known[2].append(place)
            return
        places = [place]
        self._followed[id(tensor)] = (weakref.ref(tensor), tensor._version, places)
        self.when_computed(tensor, self._emit, places)

    def notice(self, tensor: Tensor, place: SeriesKey, forward: int) -> None:
        """Note that a backward comes by, and whether forwards of one module belong to different ones."""
        self.when_computed(tensor, self._note_backward, place, forward)

    def _note_backward(self, gradient: Tensor, place: SeriesKey, forward: int) -> None:
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
        self,
        inputs: Sequence[tuple[Edge, SeriesKey]],
        outputs: Iterable[Tensor],
        first: int,
        known: dict[Consumers, GradientFlow],
    ) -> None:
        """Read what flows back through a module to its inputs, whose edges are given as they were before it ran.

        `first` is the number that autograd gave the first node made inside; `known` are the flows of the modules
        inside, to which those of this one are added.
        """
        unchanged = {edge_of(tensor): tensor for tensor in outputs}
        places: dict[Edge, list[SeriesKey]] = {}
        for edge, place in inputs:
            if edge in unchanged:  # what comes out is what went in: there is nothing between
                self.follow(unchanged[edge], place)
            else:
                places.setdefault(edge, []).append(place)
        for edge, consumers in _consumers((node for node, _ in unchanged), places, first).items():
            flow = known.get(consumers)
            if flow is None:
                flow = known[consumers] = GradientFlow(len(consumers))
                for node, number in consumers:
                    node.register_hook(self._arrival(flow, number))
            flow.places += places[edge]

    def _arrival(self, flow: GradientFlow, number: int) -> Callable[[Any, Any], None]:
        step = self._step

        def listen(to_inputs: Sequence[Tensor | None], of_outputs: object) -> None:
            if step == self._step:
                self.arrived = True
                self._guard.run(self._add, flow, to_inputs[number])

        return listen

    def _add(self, flow: GradientFlow, gradient: Tensor | None) -> None:
        flow.arrived += 1
        if gradient is not None:
            self._add_to(flow, gradient)
        if flow.arrived == flow.expected:
            self._complete(flow)
        elif flow.arrived == 1:  # some of the others may not take part in this backward
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._guard.run(self._complete, flow))

    def _add_to(self, flow: GradientFlow, gradient: Tensor) -> None:
        if flow.total is None:
            flow.total = gradient
        elif not (is_wrapper(gradient) or is_wrapper(flow.total)):
            with torch.no_grad():
                flow.total = flow.total + gradient
        elif flow.places:  # to add up DTensors may mean to wait for other processes
            what = f"{flow.places[0].kind.value} of {flow.places[0].site!r}"
            self.intake.tell_once(what, f"{what} is not recorded: it is a sum of several {type(gradient).__name__}s.")
            flow.places = []

    def _complete(self, flow: GradientFlow) -> None:
        total, flow.total, flow.arrived = flow.total, None, 0
        if total is not None:
            self._emit(total, flow.places)

    def _emit(self, gradient: Tensor, places: list[SeriesKey]) -> None:
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


def _consumers(ends: Iterable[Node], inputs: dict[Edge, list[SeriesKey]], first: int) -> dict[Edge, Consumers]:
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
