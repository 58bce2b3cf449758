"""Nested blocks: what a picture of a graph can show open or closed, and the way of a tensor through them.

There are two sources: the operations of a trace (`trace_blocks.py`) and the module calls of a run
(`module_blocks.py`). Too many children to be ordered are cut into sections, in the order in which they ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

MOST_CHILDREN = 400
SECTION, MOST_SECTIONS = 100, 150  # children of one section; sections of one block before they grow


class BlockRole(str, Enum):
    """What a block is."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    OPERATION = "operation"
    PARAMETER = "parameter"  # an operation that uses parameters
    MODULE = "module"
    CALL = "call"  # of a module, in a run
    TENSOR = "tensor"  # named by the user
    MERGE = "merge"  # where several flows go on as one
    REPEAT = "repeat"  # calls in a row that are built alike
    SECTION = "section"  # neighbors out of too many children


@dataclass(slots=True)
class Block:
    """One thing that can be drawn."""

    index: int
    parent: int  # -1 for the whole
    role: BlockRole
    path: str = ""  # of its module
    level: int = 0  # modules around it
    children: list[int] = field(default_factory=list)  # in the order in which they ran


AnyBlock = TypeVar("AnyBlock", bound=Block)


class BlockTree(Generic[AnyBlock]):
    """All blocks of a graph. Block 0 is the whole."""

    def __init__(self, whole: AnyBlock) -> None:
        self.blocks = [whole]
        self._block_type = type(whole)
        self._chains: dict[int, tuple[int, ...]] = {}

    def add(self, parent: int, role: BlockRole, path: str = "") -> AnyBlock:
        """A new block; its parent learns of it where its rank among the children is known."""
        block = self._block_type(len(self.blocks), parent, role, path)
        self.blocks.append(block)
        return block

    def chain(self, block: int) -> tuple[int, ...]:
        """The blocks around a block, from the whole down to itself; for a tree that is complete."""
        if (chain := self._chains.get(block)) is None:
            parent = self.blocks[block].parent
            chain = self._chains[block] = (block,) if parent < 0 else (*self.chain(parent), block)
        return chain

    def split(self, block: AnyBlock) -> Iterator[AnyBlock]:
        """Cut the children into sections where they are too many; yields each section."""
        if len(block.children) <= MOST_CHILDREN:
            return
        children, block.children = block.children, []
        size = max(SECTION, -(-len(children) // MOST_SECTIONS))
        for start in range(0, len(children), size):
            section = self.add(block.index, BlockRole.SECTION)
            section.children = children[start : start + size]
            for child in section.children:
                self.blocks[child].parent = section.index
            block.children.append(section.index)
            yield section
            yield from self.split(section)


class Hop(NamedTuple):
    """The part of an edge that lies in one open block: from a child, or its top border, to a child, or its bottom."""

    group: int
    tensor: int  # which one
    source: int | None  # None: it comes in through the top
    target: int | None  # None: it goes out through the bottom
    back: bool = False


def hops_along(tensor: int, upper: Sequence[int], lower: Sequence[int], meet: int, *, back: bool = False) -> list[Hop]:
    """The hops of an edge between the ends of two chains of blocks, which share those before the index `meet`.

    A chain that ends there ends at the border of the last block they share.
    """
    above, below = (chain[meet] if meet < len(chain) else None for chain in (upper, lower))
    leaving = [Hop(upper[at - 1], tensor, upper[at], None) for at in range(len(upper) - 1, meet, -1)]
    entering = [Hop(lower[at - 1], tensor, None, lower[at]) for at in range(meet + 1, len(lower))]
    return [*leaving, Hop(upper[meet - 1], tensor, above, below, back), *entering]
