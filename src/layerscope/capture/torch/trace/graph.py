"""The graph of a pass as it grows: which node a tensor is, and new nodes for what was computed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from layerscope.capture.torch.tensors import shape_of_nested
from layerscope.capture.torch.trace.arguments import HOLE, Found
from layerscope.capture.torch.trace.externals import Externals
from layerscope.capture.torch.trace.functions import Facts, Function, facts, source
from layerscope.capture.torch.trace.gradients import Gradients
from layerscope.capture.torch.trace.memory import Memory, Write
from layerscope.capture.torch.trace.modulecalls import ModuleCall
from layerscope.capture.torch.trace.nodes import Nodes, Row
from layerscope.capture.torch.trace.places import alias, covers, is_wrapper, overlap, place_of, unwrapped, update

Keep = bool | Callable[[Facts, ModuleCall], bool]
Pairs = tuple[int | str, ...]  # argument, number, argument, number …


class Graph:
    """Nodes, the memory of their tensors, the parameters and buffers, the gradients."""

    def __init__(self, outside: ModuleCall, *, keep: Keep, gradients: bool) -> None:
        self.nodes = Nodes()
        self.nodes.calls.append(outside)
        self.memory = Memory()
        self.externals = Externals(keep=keep is not False)
        self.gradients = Gradients()
        self.module = outside  # the module call in progress
        self.left_torch: int | None = None  # nodes there were when values were first given to numpy or the like
        self._keep = keep
        self._wants_gradients = gradients
        self._borrowed: list[tuple[int, weakref.ref[Tensor], int, int]] = []  # call, tensor, borrower, maker

    def resolve(self, found: Found) -> tuple[Pairs, Pairs]:
        """Which nodes, parameters and buffers the tensors of a call are."""
        parents: list[int | str] = []
        externals: list[int | str] = []
        numbers, writes = self.externals.numbers, self.memory.writes
        for i in range(0, len(found), 2):
            at, tensor = found[i], found[i + 1]
            if id(tensor) in numbers:
                number = self.externals.number_of(tensor)
                externals.append(at)
                externals.append(number)
                if not (writes and self._is_written(number, tensor)):
                    continue
            parents.append(at)
            parents.append(self.node_of(tensor))
        return tuple(parents), tuple(externals)

    def node_of(self, tensor: Tensor) -> int:
        """The node of a tensor; one that came from outside becomes a node now."""
        memory = self.memory
        node = memory.node_of(tensor)
        if node is None:
            return self.add_outside(tensor)
        if memory.writes and (unseen := memory.unseen_writes(node, tensor)):
            node = self._catch_up(node, tensor, unseen)
        try:
            changed = tensor._version != memory.versions[node]
        except RuntimeError:  # made in inference mode
            changed = False
        if changed:
            memory.unproven.add(node)
            return self._add_seen("update", tensor, ("0", node))
        if self._wants_gradients and tensor.requires_grad:
            self._await_gradient(node, tensor)
        return node

    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor came out of a call that was recorded, or was given as input."""
        return self.memory.node_of(tensor) is not None

    def can_place(self, tensor: Tensor) -> bool:
        """Whether it can be said where the tensor comes from: it is known, has a name, or shares memory with one."""
        return self.knows(tensor) or self.externals.has(tensor) or self.memory.neighbor_of(tensor) is not None

    def add(self, call: Row, circumstances: Row, results: Sequence[Tensor], *, track: bool = True) -> int:
        """Nodes for the results of a call; gives the first.

        `call` holds the first seven fields of a row, `circumstances` the time it took and the random state it found.
        """
        rows = self.nodes.rows
        lead = len(rows)
        grad_mode = torch.is_grad_enabled()
        autocast = _autocast() if torch._C._is_any_autocast_enabled() else None
        elapsed_s, random_state = circumstances
        keep = self._keep if isinstance(self._keep, bool) else self._keep(self.nodes.makers[call[0]][0], self.module)
        for position, tensor in enumerate(results):
            node = len(rows)
            grad_fn = tensor.grad_fn
            rows.append(
                (*call, elapsed_s, grad_mode, autocast, random_state, lead, position,
                 tuple(tensor.shape) if not tensor.is_nested else shape_of_nested(tensor),
                 tensor.dtype, tensor.device, None if grad_fn is None else type(grad_fn).__name__)
            )  # fmt: skip
            self.memory.add(node, tensor, keep=keep, track=track)
            if self._wants_gradients and grad_mode and tensor.requires_grad:
                self._await_gradient(node, tensor)
        return lead

    def borrow(self, tensor: Tensor, borrower: int, maker: int) -> None:
        """Note that a call gave back its argument as it was, such as a cast to the type it had."""
        if self.module.index:  # outside of all modules nothing is given back
            self._borrowed.append((self.module.index, weakref.ref(tensor), borrower, maker))

    def give_back(self, outputs: list[Tensor]) -> None:
        """At the end of a module, what was borrowed inside is its maker's again; what it gives on stays borrowed."""
        around = self.module.parent.index if self.module.parent else 0
        given_on = []
        while self._borrowed and self._borrowed[-1][0] >= self.module.index:
            _, ref, borrower, maker = self._borrowed.pop()
            tensor = ref()
            if tensor is None:
                continue
            if not any(tensor is output for output in outputs):
                self.memory.give_back(tensor, borrower, maker)
            elif around:
                given_on.append((around, ref, borrower, maker))
        self._borrowed.extend(reversed(given_on))

    def add_input(self, tensor: Tensor) -> int:
        """A node for a tensor that goes into the pass."""
        return self._add_seen("input", tensor, ())

    def add_output(self, tensor: Tensor) -> int:
        """A node that marks a result of the pass."""
        parents, externals = self.resolve(["0", tensor])
        call = self._row(source("output"), None, (HOLE,), (parents, externals))
        return self.add(call, (0.0, None), [tensor], track=False)

    def add_outside(self, tensor: Tensor) -> int:
        """A node for a tensor whose making was not seen; its memory may tell where it comes from."""
        if is_wrapper(tensor):
            inner = torch._C._functorch.get_unwrapped(tensor)
            parent = self.node_of(inner) if is_wrapper(inner) or self.knows(inner) else None
            parent = self.memory.neighbor_of(unwrapped(tensor)) if parent is None else parent
        else:
            parent = self.memory.neighbor_of(tensor)
        if parent is not None:
            return self._add_alias(parent, tensor)
        if (number := self.externals.sharing(tensor)) is not None:
            return self._add_seen("alias", tensor, (), ("0", number))
        compiled = type(tensor.grad_fn).__name__ == "CompiledFunctionBackward"  # a function compiled within the pass
        return self._add_seen("compiled" if compiled else "constant", tensor, ())

    def before_write(self, tensors: list[Tensor]) -> None:
        """Copy what is kept of memory that is about to be written."""
        self.memory.before_write(tensors)
        self.externals.before_write(tensors, len(self.nodes))

    def after_write(self, lead: int, loud: list[Tensor], quiet: list[Tensor]) -> None:
        """Note what a call has written: tensors that are its results, and others beside them.

        Of parameters and buffers a copy is kept: they outlive the pass, and change again.
        """
        self.externals.after_write(lead, loud + quiet)
        self.memory.before_write([tensor for tensor in loud if self.externals.has(tensor)])
        for tensor in loud:
            node = self.memory.node_of(tensor)
            self.memory.after_write(lead if node is None else node, tensor, quiet=False)
        for tensor in quiet:
            self.memory.after_write(len(self.nodes) - 1, tensor, quiet=True)

    def _is_written(self, number: int, tensor: Tensor) -> bool:
        """Whether a parameter or buffer holds what a recorded call has written, and so has a node."""
        if self.knows(tensor):
            return True
        unseen = self.memory.unseen_writes(self.externals.all[number].since, tensor)
        place = place_of(tensor)
        writes = [write for write in unseen if place and write.place and overlap(write.place, place)]
        if writes:
            self._add_update((), ("0", number), tensor, writes)
        return bool(writes)

    def _catch_up(self, node: int, tensor: Tensor, unseen: list[Write]) -> int:
        """The node of a tensor whose memory was written through other tensors since."""
        place = place_of(tensor)
        writes = [write for write in unseen if not (place and write.place) or overlap(write.place, place)]
        if not writes:
            self.memory.refresh(node, tensor)
            return node
        if place is None or any(write.place is None for write in writes):
            parents = ("0", node, *(part for at, write in enumerate(writes) for part in (str(at + 1), write.node)))
            return self._add_seen("update", tensor, parents)
        return self._add_update(("0", node), (), tensor, writes)

    def _add_update(self, old: Pairs, old_external: Pairs, tensor: Tensor, writes: list[Write]) -> int:
        """A node for a tensor that was changed through other views of its memory."""
        place = place_of(tensor)
        assert place is not None
        covering = [at for at, write in enumerate(writes) if write.place is not None and covers(write.place, place)]
        if covering:  # nothing is left of what was there before
            writes = writes[covering[-1] :]
            old = old_external = ()
            if len(writes) == 1:
                return self._add_alias(writes[0].node, tensor)
        parents = (*old, *(part for at, write in enumerate(writes) for part in (f"1.{at}", write.node)))
        places = tuple(tuple(write.place) for write in writes if write.place is not None)
        args = (HOLE if not covering else None, (HOLE,) * len(writes), tuple(place), places)
        call = self._row(facts(update), update, args, (parents, old_external))
        return self.add(call, (0.0, None), [tensor])

    def _add_alias(self, parent: int, tensor: Tensor) -> int:
        """A node for a tensor that is another view of a node's memory."""
        original = self.memory.values.get(parent)
        place, other = place_of(tensor), None if original is None else place_of(original)
        if place is None or other is None or not covers(other, place):
            return self._add_seen("alias", tensor, ("0", parent))
        call = self._row(facts(alias), alias, (HOLE, tuple(other), tuple(place)), (("0", parent), ()))
        return self.add(call, (0.0, None), [tensor])

    def _add_seen(self, name: str, tensor: Tensor, parents: Pairs, externals: Pairs = ()) -> int:
        """A node of which only the result was seen."""
        args = (HOLE,) * ((len(parents) + len(externals)) // 2)
        return self.add(self._row(source(name), None, args, (parents, externals)), (0.0, None), [tensor])

    def _row(self, about: Facts, function: Function | None, args: tuple[Any, ...], pairs: tuple[Pairs, Pairs]) -> Row:
        return self.nodes.maker(about, function), args, (), *pairs, self.module.index, ()

    def _await_gradient(self, node: int, tensor: Tensor) -> None:
        if not self.gradients.awaits(node) and not is_wrapper(tensor):
            self.gradients.await_node(node, tensor)


def _autocast() -> str | None:
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return ",".join(f"{kind}:{str(torch.get_autocast_dtype(kind)).removeprefix('torch.')}" for kind in kinds) or None
