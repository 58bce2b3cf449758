"""A tracer beside somebody's training, which must not hear of its errors."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, ParamSpec

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from layerscope.capture.core.named_tensors import Graphs, NamedStep, NamedTensor
from layerscope.capture.torch.trace.compiled_calls import leave, sink
from layerscope.capture.torch.trace.op_recorder import OpRecorder
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.model.records import DependencyLink, NamedNode, TensorType

P = ParamSpec("P")


class ForgivingTracer(Tracer):
    """A tracer whose errors do not reach the training: it gives up instead."""

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__(model, keep=False, gradients=False)
        self.ops.forgiving = True
        self.begun: FrameType | None = None  # of the call that the tracer was told of before its hooks could hear of it

    def before_module(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Begin the call of a module."""
        if frame is not self.begun:
            self.attempt(super().before_module, module, args, frame)

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """End the call of a module."""
        self.attempt(super().after_module, module, result, frame)

    def attempt(self, listen: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the function, unless something went wrong before; if something goes wrong now, remember it."""
        if self.ops.trouble is None:
            try:
                listen(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  a bug of ours must not stop somebody's training
                self.ops.trouble = error


MOST_PARAMETERS = 24  # in one node: a larger part of the model is shown by its children
_MOST_OPERATIONS = 300_000  # somebody may do much between two steps
Links = Mapping[NamedTensor, list[NamedTensor | str]]  # what each depends on: named tensors, and names of parameters


class StepTracer:
    """Traces a step on the thread it begins on, below whatever function modes others have entered or will enter."""

    def __init__(self, model: nn.Module | None) -> None:
        self._tracer = ForgivingTracer(model)
        self._tracer.ops.most = _MOST_OPERATIONS
        self._nodes: dict[NamedTensor, int] = {}
        self._at: dict[int, list[NamedTensor]] = {}  # the same by node
        self._by_hand: dict[int, list[int]] = {}  # node → nodes it depends on
        self._leaves: dict[int, list[NamedTensor]] = {}  # by identity: parameters are known by it
        self._thread = threading.get_ident()
        for mode in tuple(_left_behind):  # at most a few, of steps that ended on another thread: one may lie on this
            leave(mode)
        self._tracer.__enter__()
        sink(self._tracer.ops)
        _entered.add(self)

    @property
    def trouble(self) -> Exception | None:
        """Why the dependencies are not known, if they are not."""
        return self._tracer.ops.trouble

    def leave(self) -> None:
        """Trace no more; what cannot be taken off the stack of another thread does nothing there."""
        if threading.get_ident() != self._thread:
            self.give_up("the step ended on another thread")
            _left_behind.add(self._tracer.ops)
        _entered.discard(self)
        self._tracer.__exit__()

    def give_up(self, reason: str) -> None:
        """Look at nothing more; the stack of function modes is left as it is."""
        if self.trouble is None:
            self._tracer.ops.trouble = RuntimeError(reason)

    def name(self, entry: NamedTensor, tensor: Tensor) -> None:
        """Note which node the tensor is."""
        self._tracer.attempt(self._name, entry, tensor)

    def _name(self, entry: NamedTensor, tensor: Tensor) -> None:
        node = self._nodes[entry] = self._tracer.graph.node_of(tensor)
        self._at.setdefault(node, []).append(entry)
        if tensor.is_leaf and tensor.requires_grad:
            self._leaves.setdefault(id(tensor), []).append(entry)

    def link(self, source: NamedTensor | Tensor, target: NamedTensor | Tensor) -> None:
        """Let one thing depend on another, whatever was computed."""
        self._tracer.attempt(self._link, source, target)

    def _link(self, source: NamedTensor | Tensor, target: NamedTensor | Tensor) -> None:
        one, other = (
            self._nodes[thing] if isinstance(thing, NamedTensor) else self._tracer.graph.node_of(thing)
            for thing in (source, target)
        )
        self._by_hand.setdefault(other, []).append(one)

    def links(self, parameters: Mapping[Tensor, str]) -> Links:
        """What each named tensor depends on, without anything named between."""
        return {entry: list(dict.fromkeys(self._sources(entry, parameters))) for entry in self._nodes}

    def _sources(self, target: NamedTensor, parameters: Mapping[Tensor, str]) -> Iterator[NamedTensor | str]:
        start = self._nodes[target]
        same = _named(self._at[start], target, only_before=True)
        if same is not None:  # the very tensor had another name before
            yield same
            return
        rows, externals = self._tracer.ops.nodes.rows, self._tracer.graph.externals.all
        waiting, visited = [start], {start}
        while waiting:
            node = waiting.pop()
            for number in rows[node][4][1::2]:
                tensor = externals[number].tensor
                named = _named(self._leaves.get(id(tensor), ()), target)
                if named is not None:
                    yield named
                elif tensor in parameters:
                    yield parameters[tensor]
            for parent in (*rows[node][3][1::2], *self._by_hand.get(node, ())):
                if parent not in visited:
                    visited.add(parent)
                    named = _named(self._at.get(parent, ()), target)
                    if named is None:
                        waiting.append(parent)
                    else:
                        yield named


def _named(entries: Sequence[NamedTensor], target: NamedTensor, *, only_before: bool = False) -> NamedTensor | None:
    """Which of the names of a tensor something depends on: the last it had when that was named, else its first."""
    fitting = [entry for entry in entries if entry.iteration <= target.iteration and entry is not target]
    before = [entry for entry in fitting if entry.number < target.number]
    return before[-1] if before else fitting[0] if fitting and not only_before else None


def groups(names: Sequence[str], prefix: str = "") -> dict[str, str]:
    """The node of each parameter: the child of the model it is in, or of that child where it has too many."""
    children: dict[str, list[str]] = {}
    for name in names:
        child, dot, _ = name[len(prefix) :].partition(".")
        children.setdefault(prefix + child if dot else name, []).append(name)
    found: dict[str, str] = {}
    for child, members in children.items():
        large = len(members) > MOST_PARAMETERS
        found.update(groups(members, f"{child}.") if large else dict.fromkeys(members, child))
    return found


class NamedSubgraph:
    """Graphs of the iterations of a step, made of what was named."""

    def __init__(self) -> None:
        self._group: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._first: dict[
            tuple[str, str], tuple[int, ...]
        ] = {}  # shapes as first seen: a smaller batch is no new graph

    def graphs(self, now: NamedStep, parameters: Mapping[Tensor, str], links: Links) -> Graphs:
        """The graph of each iteration, initial values first."""
        names = list(parameters.values())
        if self._group.keys() != set(names):
            self._group = groups(names)
            self._shapes = {name: tuple(tensor.shape) for tensor, name in parameters.items() if not is_lazy(tensor)}
        taken = {entry.label for entry in now.entries.values()}
        by_iteration: dict[int, list[NamedTensor]] = {}
        for entry in now.entries.values():
            by_iteration.setdefault(entry.iteration, []).append(entry)
        return tuple(
            (self._nodes(members, links, taken), self._links(members, links, taken))
            if (members := by_iteration.get(iteration))
            else None
            for iteration in range(max(now.iterations, 1) + 1)
        )

    def _nodes(self, entries: Sequence[NamedTensor], links: Links, taken: set[str]) -> tuple[NamedNode, ...]:
        parts: dict[str, TensorType] = {}
        roles: dict[str, dict[str, tuple[int, ...]]] = {}
        for entry in entries:
            parts.setdefault(entry.label, entry.type)
            shape = self._first.setdefault((entry.label, entry.role), entry.shape)
            roles.setdefault(entry.label, {})[entry.role] = shape
        used = {self._group[name] for entry in entries for name in links.get(entry, ()) if isinstance(name, str)}
        for name, group in self._group.items():
            if group in used:
                node, role = self._place(name, taken)
                parts[node] = TensorType.PARAMETER
                roles.setdefault(node, {})[role] = self._shapes.get(name, ())
        return tuple(NamedNode(name, part, tuple(roles[name].items())) for name, part in parts.items())

    def _links(self, entries: Sequence[NamedTensor], links: Links, taken: set[str]) -> tuple[DependencyLink, ...]:
        found = []
        for target in entries:
            for source in links.get(target, ()):
                if isinstance(source, str):
                    place = (*self._place(source, taken), 0)
                else:
                    place = (source.label, source.role, target.iteration - source.iteration)
                found.append(DependencyLink(*place, target.label, target.role))
        return tuple(
            sorted(found, key=lambda link: (link.target, link.target_role, link.source, link.source_role, link.back))
        )

    def _place(self, name: str, taken: set[str]) -> tuple[str, str]:
        """Node and role of a parameter; a node whose name a recorded tensor has is told apart by a dot at its end."""
        group = self._group[name]
        return (f"{group}." if group in taken else group), name[len(group) + 1 :]


def _forked() -> None:
    """In a process that was forked in the middle of a step nobody ends the step: its tracer would remember all."""
    for tracer in tuple(_entered):
        tracer.give_up("the process was forked")


_entered: weakref.WeakSet[StepTracer] = weakref.WeakSet()
_left_behind: weakref.WeakSet[OpRecorder] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # not where processes cannot be forked
    os.register_at_fork(after_in_child=_forked)
