"""How the operations of a pass hang together: who takes whose result, branches, merges, distances."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from layerscope.operations import Operation, Role


class Distance(NamedTuple):
    """Steps along the graph, by the shortest and by the longest way."""

    shortest: int
    longest: int

    def __str__(self) -> str:
        return str(self.shortest) if self.shortest == self.longest else f"{self.shortest}-{self.longest}"


class Relations:
    """What follows for each operation from the parents of all."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._leads = [op.lead for op in operations]
        self.parents = [list(dict.fromkeys(p.operation for p in op.parents)) for op in operations]
        #: the operations that take each one's result, and the arguments they take it as
        self.children: list[dict[int, list[str]]] = [{} for _ in operations]
        for op in operations:
            for parent in op.parents:
                self.children[parent.operation].setdefault(op.index, []).append(parent.argument)
        inputs = {op.index for op in operations if op.role is Role.INPUT}
        outputs = {op.index for op in operations if op.role is Role.OUTPUT}
        forth = range(len(operations))
        #: None where no input, or no output, can be reached
        self.from_input = _distances(forth, self.parents, inputs)
        self.to_output = _distances(reversed(forth), self.children, outputs)

    def is_branch(self, index: int) -> bool:
        """Whether several calls take its result."""
        return len({self._leads[child] for child in self.children[index]}) > 1

    def is_merge(self, index: int) -> bool:
        """Whether it takes several results."""
        return len(self.parents[index]) > 1


def _distances(order: Iterable[int], nearer: Sequence[Collection[int]], ends: Collection[int]) -> list[Distance | None]:
    found: list[Distance | None] = [None] * len(nearer)
    for index in order:
        if index in ends:
            found[index] = Distance(0, 0)
        elif known := [distance for other in nearer[index] if (distance := found[other]) is not None]:
            shortest, longest = zip(*known, strict=True)
            found[index] = Distance(1 + min(shortest), 1 + max(longest))
    return found
