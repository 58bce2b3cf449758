"""Reads gradients while backward runs: of tensors, through modules, and what each loss adds to those of parameters."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from layerscope.capture.core.framework import Framework, GradientEdge, Handle, Tensor
from layerscope.capture.core.guard import ListenerGuard
from layerscope.capture.core.named_tensors import NamedTensor
from layerscope.capture.core.summarizer import SeriesKey, Summarizer
from layerscope.model.records import Kind

Sums = dict[Tensor, Tensor]  # by parameter


class Contributions:
    """The sums of contributions to parameters' gradients: those whose loss is not known yet, and those of each loss.

    A contribution is kept, not copied: autograd then makes `.grad` a copy, where it would have used the tensor itself.
    """

    def __init__(self, framework: Framework, guard: ListenerGuard, arrive: Callable[[], None]) -> None:
        self._framework = framework
        self._guard = guard
        self._arrive = arrive  # called before a contribution is added to those that are waiting
        self._nodes: dict[Tensor, Any] = {}
        self._handles: list[Handle] = []
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
        """Read the parameters' gradients for the rest of the step."""
        for parameter in parameters:
            node = self._framework.accumulator(parameter)
            if node is not None and self._nodes.get(parameter) is not node:
                self._nodes[parameter] = node
                handle = self._framework.on_accumulation(node, partial(self._listen, parameter))
                if handle is not None:
                    self._handles.append(handle)

    def look_again(self) -> None:
        """Follow the same parameters by the nodes they have now: `.double()` replaces them, for one."""
        self.follow(list(self._nodes))

    def name(self, loss: str) -> Sums:
        """Count what is waiting as of a loss, and give it."""
        named, self.waiting = self.waiting, {}
        if named:
            total = self.of_loss.setdefault(loss, {})
            for parameter, gradient in named.items():
                self._add(total, parameter, gradient)
        return named

    def _listen(self, parameter: Tensor, gradient: Tensor) -> None:
        self._guard.run(self._take, parameter, gradient)

    def _take(self, parameter: Tensor, gradient: Tensor) -> None:
        self._arrive()
        self._add(self.waiting, parameter, self._framework.kept(gradient))

    def _add(self, sums: Sums, parameter: Tensor, gradient: Tensor) -> None:
        """Checkpointing may bring several parts of one gradient, and several micro-batches are of one loss."""
        sums[parameter] = self._framework.sum(sums[parameter], gradient) if parameter in sums else gradient


_NORM = {Kind.INPUT_GRAD: Kind.INPUT_GRAD_NORM, Kind.OUTPUT_GRAD: Kind.OUTPUT_GRAD_NORM}
Consumers = frozenset[tuple[Any, int]]  # nodes, and which of their inputs


class GradientFlow:
    """The gradient of one input as it comes through a module: the sum over the nodes that used the input inside."""

    __slots__ = ("arrived", "expected", "keys", "total")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.keys: list[SeriesKey] = []
        self.arrived = 0
        self.total: Tensor | None = None


class GradientReader:
    """Reads gradients of the chosen kinds while backward runs, in the step in which their tensors were made."""

    def __init__(self, summarizer: Summarizer, guard: ListenerGuard, kinds: frozenset[Kind]) -> None:
        self.summarizer = summarizer
        self._framework = summarizer.framework
        self._guard = guard
        self._kinds = kinds
        self._step = 0  # a graph may outlive its step: its hooks then do nothing
        self._followed: dict[int, tuple[weakref.ref[Tensor], int | None, list[SeriesKey]]] = {}
        self._handles: list[Handle] = []
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
        while self._handles:
            self._handles.pop().remove()

    def wants(self, kind: Kind) -> bool:
        """Whether gradients of the kind, or their norms, are read."""
        return kind in self._kinds or _NORM.get(kind) in self._kinds

    def follow(self, tensor: Tensor, key: SeriesKey) -> None:
        """Read the tensor's whole gradient into its series, with every backward."""
        known, version = self._followed.get(id(tensor)), self._framework.version(tensor)
        if known is not None and known[0]() is tensor and known[1] == version:
            known[2].append(key)
            return
        keys = [key]
        self._followed[id(tensor)] = (weakref.ref(tensor), version, keys)
        self.when_computed(tensor, self._emit, keys)

    def notice(self, tensor: Tensor, key: SeriesKey, forward: int) -> None:
        """Note that a backward comes by, and whether forwards of one module belong to different ones."""
        self.when_computed(tensor, self._note_backward, key, forward)

    def _note_backward(self, gradient: Tensor, key: SeriesKey, forward: int) -> None:
        backward = self._framework.backward()
        first, its_backward = self._backwards.setdefault(key, (forward, backward))
        if first != forward and its_backward != backward:
            self.mixed = self.mixed or key.site

    def when_computed(self, tensor: Tensor, read: Callable[..., None], *known: object) -> None:
        """Have the function called with the tensor's whole gradient, and what is known, when a backward has it."""
        step = self._step

        def listen(gradient: Tensor) -> None:
            if step == self._step:
                self.arrived = True
                self._guard.run(read, gradient, *known)

        handle = self._framework.on_gradient(tensor, listen)
        if handle is not None:
            self._handles.append(handle)

    def through(
        self,
        inputs: Sequence[tuple[GradientEdge, SeriesKey]],
        outputs: Iterable[Tensor],
        first: int,
        known: dict[Consumers, GradientFlow],
    ) -> None:
        """Read what flows back through a module to its inputs, whose edges are given as they were before it ran.

        `first` is the number that autograd gave the first node made inside; `known` are the flows of the modules
        inside, to which those of this one are added.
        """
        unchanged = {self._framework.edge(tensor): tensor for tensor in outputs}
        keys: dict[GradientEdge, list[SeriesKey]] = {}
        for edge, key in inputs:
            if edge in unchanged:  # what comes out is what went in: there is nothing between
                self.follow(unchanged[edge], key)
            else:
                keys.setdefault(edge, []).append(key)
        for edge, consumers in self._consumers((edge.node for edge in unchanged), keys, first).items():
            flow = known.get(consumers)
            if flow is None:
                flow = known[consumers] = GradientFlow(len(consumers))
                for node, number in consumers:
                    self._framework.on_node(node, self._arrival(flow, number))
            flow.keys += keys[edge]

    def _consumers(
        self, ends: Iterable[Any], inputs: dict[GradientEdge, list[SeriesKey]], first: int
    ) -> dict[GradientEdge, Consumers]:
        """The nodes made since number `first` that used the inputs, by walking back from the ends."""
        consumers: dict[GradientEdge, list[tuple[Any, int]]] = {}
        waiting = list(ends) if inputs else []
        visited = set(waiting)
        next_edges, node_number = self._framework.next_edges, self._framework.node_number
        while waiting:
            node = waiting.pop()
            for number, edge in enumerate(next_edges(node)):
                source = edge[0]
                if source is None:
                    continue
                if edge in inputs:
                    consumers.setdefault(GradientEdge(*edge), []).append((node, number))
                elif source not in visited and node_number(source) >= first:  # made inside: what is older lies outside
                    visited.add(source)
                    waiting.append(source)
        return {edge: frozenset(members) for edge, members in consumers.items()}

    def _arrival(self, flow: GradientFlow, number: int) -> Callable[[Sequence[Tensor | None]], None]:
        step = self._step

        def listen(to_inputs: Sequence[Tensor | None]) -> None:
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
            self._framework.after_backward(lambda: self._guard.run(self._complete, flow))

    def _add_to(self, flow: GradientFlow, gradient: Tensor) -> None:
        if flow.total is None:
            flow.total = gradient
            return
        total = self._framework.sum(flow.total, gradient)
        if total is not None:
            flow.total = total
        elif flow.keys:
            what = f"{flow.keys[0].kind.value} of {flow.keys[0].site!r}"
            self.summarizer.report_once(
                what, f"{what} is not recorded: it is a sum of several {type(gradient).__name__}s."
            )
            flow.keys = []

    def _complete(self, flow: GradientFlow) -> None:
        total, flow.total, flow.arrived = flow.total, None, 0
        if total is not None:
            self._emit(total, flow.keys)

    def _emit(self, gradient: Tensor, keys: list[SeriesKey]) -> None:
        norms: Tensor | None = None
        part, local = self._framework.local_part(gradient)
        for key in keys:
            if key.kind in self._kinds:
                self.summarizer.add(gradient, key)
            norm = _NORM.get(key.kind)
            if norm in self._kinds:
                assert norm is not None
                if self._framework.is_oversized(part):
                    what = f"{norm.value} of {key.site!r}"
                    self.summarizer.report_once(
                        what, f"{what} is not recorded: the gradient is a view too large to copy."
                    )
                    continue
                norms = self._framework.norms(part) if norms is None else norms
                if norms is not None:
                    self.summarizer.add(norms, key._replace(kind=norm, local=local))


def _nothing() -> None:
    pass
