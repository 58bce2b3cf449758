"""Gradients of the nodes, caught as backward passes reach them.

The hooks sit on autograd's own nodes, never on the user's tensors, and know the store only by a weak reference: a
strong one would close a circle through C++ that the garbage collector cannot see.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor


class Gradients(dict[int, list[Tensor]]):
    """Node → its gradients, one for each backward that reached it."""

    def __init__(self) -> None:
        super().__init__()
        self._hooked: set[int] = set()
        self._leaves: list[object] = []  # autograd drops the node of a leaf that no graph has used yet
        self._me = weakref.ref(self)

    def awaits(self, node: int) -> bool:
        """Whether the node's gradient will be caught."""
        return node in self._hooked

    def await_node(self, node: int, tensor: Tensor) -> None:
        """Catch the gradient of a node's tensor in every backward from now on."""
        function = tensor.grad_fn
        if function is None:
            function = _accumulator(tensor)
            if function is None:
                return
            self._leaves.append(function)
        self._hooked.add(node)
        function.register_prehook(partial(_catch, self._me, node, tensor.output_nr))

    def let_go(self) -> None:
        """Hold no leaf any more: from now on the graph does, if there is one."""
        self._leaves.clear()

    def total(self, node: int) -> Tensor | None:
        """The sum over all backwards; None if none reached the node."""
        found = self.get(node)
        return None if not found else torch.stack(tuple(found)).sum(0) if len(found) > 1 else found[0]


def _accumulator(tensor: Tensor) -> torch.autograd.graph.Node | None:
    """Autograd's node that gathers a leaf's gradient; a view made without grad mode has none."""
    with torch.enable_grad():
        function = tensor.view_as(tensor).grad_fn
    return None if function is None else function.next_functions[0][0]


def _catch(store: weakref.ref[Gradients], node: int, slot: int, gradients: Sequence[Tensor | None]) -> None:
    alive = store()
    if alive is None or slot >= len(gradients) or (gradient := gradients[slot]) is None:
        return
    with torch._C.DisableTorchFunction():
        alive.setdefault(node, []).append(gradient.detach() if gradient.requires_grad else gradient)
