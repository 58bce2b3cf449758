"""Data that flows from one outermost call to another within a step.

What a training loop computes between two calls is not traced: a mode that stays in place outside of all modules would
get between the user's own. A tensor is recognized by itself, by its memory (`detach()`, views) or by autograd.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

from torch import Tensor
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef

from layerscope.capture.torch.trace.places import is_plain, storage_of
from layerscope.records import Edge

MOST_NODES = 10_000  # of the autograd graph, looked at on the way from one call back to others

Source = tuple[str, str]  # site and port


class Roots:
    """What the outermost calls of a step gave."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[weakref.ref[Tensor], Source]] = {}
        self._memories: dict[int, tuple[StorageWeakRef, Source]] = {}
        self._nodes: dict[tuple[int, int], Source] = {}  # by sequence number: a node would hold the autograd graph
        self._first = 0  # the smallest of them

    def start_over(self) -> None:
        """Forget the step."""
        if self._tensors:
            self.__init__()  # type: ignore[misc]  # it is as new

    def give(self, site: str, outputs: Iterable[tuple[str, Tensor]]) -> None:
        """Remember what an outermost call gave."""
        for port, tensor in outputs:
            source = site, port
            self._tensors[id(tensor)] = weakref.ref(tensor), source
            if is_plain(tensor):
                self._memories[storage_of(tensor)] = StorageWeakRef(tensor.untyped_storage()), source
            if tensor.grad_fn is not None:
                number = tensor.grad_fn._sequence_nr()
                self._first = min(self._first, number) if self._nodes else number
                self._nodes[number, tensor.output_nr] = source

    def edges_into(self, site: str, inputs: Iterable[tuple[str, Tensor]]) -> Iterator[Edge]:
        """Edges from earlier outermost calls to one that is about to begin."""
        if self._tensors:
            for port, tensor in inputs:
                for source, source_port in dict.fromkeys(self._sources(tensor)):
                    yield Edge(source, source_port, site, port)

    def _sources(self, tensor: Tensor) -> Iterator[Source]:
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor:
            yield known[1]
            return
        found = list(self._by_autograd(tensor))
        memory = self._memories.get(storage_of(tensor)) if not found else None
        if memory is not None and not memory[0].expired():
            found = [memory[1]]
        yield from found

    def _by_autograd(self, tensor: Tensor) -> Iterator[Source]:
        waiting: list[tuple[Node | None, int]] = [(tensor.grad_fn, tensor.output_nr)]
        visited: set[Node] = set()
        while waiting and len(visited) < MOST_NODES:
            node, number = waiting.pop()
            if node is None or not self._nodes:
                continue
            sequence = node._sequence_nr()
            source = self._nodes.get((sequence, number))
            if source is not None:
                yield source
            elif node not in visited and sequence >= self._first:
                visited.add(node)
                waiting += node.next_functions
