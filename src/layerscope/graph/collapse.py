"""What of a pass is visible: which blocks are open, and the edges between what can be seen."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from layerscope.errors import SelectError
from layerscope.graph.blocks import BlockRole, Hop, hops_along
from layerscope.graph.layers import Naming
from layerscope.graph.trace_blocks import Instance, TraceBlock, TraceBlocks, passes_text
from layerscope.model.patterns import nearest
from layerscope.model.records import name_in
from layerscope.model.trace_record import TraceRecord, field_of_all

MOST_READABLE = 150  # nodes in one picture
LABELLED_PASSES = 6  # runs of pass numbers that fit on an edge


@dataclass(frozen=True, slots=True)
class Opening:
    """What to show: everything or one module, how deep, and with repeated operations as one node or many."""

    depth: int | None = None  # None: as deep as can be read
    rolled: bool = True
    focus: str | None = None  # "encoder.0", or "encoder.0#2" for its second call
    expanded: Collection[str] = ()  # modules that are open whatever the depth


@dataclass(slots=True)
class VisibleEdge:
    """All tensors that go from one visible block to another."""

    source: int
    target: int
    hops: tuple[Hop, ...]
    back: bool  # into an earlier block: the next pass of a loop
    pairs: list[tuple[int, int]] = field(default_factory=list)  # the operations it stands for
    passes: str = ""  # which passes of the loop it belongs to, where that is not all of them


@dataclass(frozen=True, slots=True)
class Drawable:
    """A pass as it is to be drawn: open blocks are boxes, the others nodes."""

    tree: TraceBlocks
    root: int
    open: frozenset[int]
    edges: tuple[VisibleEdge, ...]

    def visible(self) -> list[TraceBlock]:
        """The blocks that are drawn as nodes, in the order of the pass."""
        return list(_visible(self.tree, self.root, self.open))


def collapse(record: TraceRecord, naming: Naming, opening: Opening) -> Drawable:
    """The visible part of a pass."""
    if opening.depth is not None and opening.depth < 1:
        raise SelectError(f"A depth of {opening.depth} shows nothing: depth=1 shows the outermost modules as nodes.")
    path = None if opening.focus is None else name_in(opening.focus, {call.path for call in record.calls})
    tree = TraceBlocks(record, naming, rolled=opening.rolled, kept=path)
    root = 0 if opening.focus is None else _find(tree, opening.focus)
    opened = readable(tree, root) if opening.depth is None else _opened(tree, root, opening.depth)
    for name in opening.expanded:
        opened |= set(tree.chain(_find(tree, name)))
    return drawable(tree, root, opened)


def drawable(tree: TraceBlocks, root: int, opened: Collection[int]) -> Drawable:
    """The part of a pass below a block that is seen when some blocks are open."""
    edges = _Edges(tree, root, opened)
    for operation, parents in enumerate(field_of_all(tree.record.operations, "parents")):
        for parent in dict.fromkeys(parents):
            edges.add(parent, operation)
    return Drawable(tree, root, frozenset(opened), tuple(edges.finished()))


def _find(tree: TraceBlocks, name: str) -> int:
    """The block of a module, by its path and, where it matters, the number of its call."""
    calls = tree.record.calls
    path = name_in(name, {call.path for call in calls})
    number = name[len(path) + 1 :]
    for block in tree.blocks:
        if block.role is BlockRole.MODULE and block.children and block.path == path:
            numbers = {str(calls[call].number) for call in block.calls}
            if not number or number in numbers:
                return block.index
    paths = sorted({block.path for block in tree.blocks if block.role is BlockRole.MODULE and block.path})
    raise SelectError(f"This pass has no call of a module {name!r} with operations inside. {nearest(path, paths)}")


def _opened(tree: TraceBlocks, root: int, depth: int, *, sections: bool = True) -> set[int]:
    """The blocks that are open at a depth, counted from the block that is looked at."""
    base = tree.blocks[root].level
    opened, waiting = set(), [root]
    while waiting:
        block = tree.blocks[waiting.pop()]
        is_shown = block.level - base < depth and (sections or block.role is not BlockRole.SECTION)
        if block.children and is_shown:
            opened.add(block.index)
            waiting.extend(block.children)
    return opened | {root}


def readable(tree: TraceBlocks, root: int) -> set[int]:
    """The deepest opening whose nodes can still be read."""
    best = _opened(tree, root, 1, sections=False)
    levels = max(block.level for block in tree.blocks) - tree.blocks[root].level
    for depth in range(1, levels + 1):
        opened = _opened(tree, root, depth)
        if sum(1 for _ in _visible(tree, root, opened)) > MOST_READABLE:
            is_flat = tree.blocks[tree.blocks[root].children[0]].role is not BlockRole.SECTION
            return opened if depth == 1 and is_flat else best
        best = opened
    return best


def _visible(tree: TraceBlocks, root: int, opened: Collection[int]) -> Iterator[TraceBlock]:
    waiting = [root]
    while waiting:
        block = tree.blocks[waiting.pop()]
        if block.index in opened:
            waiting.extend(reversed(block.children))
        else:
            yield block


@dataclass(slots=True)
class _Gathered:
    """An edge in the making, and the passes its ends were met in."""

    edge: VisibleEdge
    ends: tuple[Instance, Instance]
    source_passes: set[int] = field(default_factory=set)
    target_passes: set[int] = field(default_factory=set)


class _Seen(NamedTuple):
    """The calls around an operation from the root on, and which of them is drawn as a node."""

    chain: tuple[Instance, ...]
    end: int


class _Edges:
    """Edges between visible blocks, gathered from the parents of operations."""

    def __init__(self, tree: TraceBlocks, root: int, opened: Collection[int]) -> None:
        self._tree, self._root, self._opened = tree, root, opened
        self._cut = len(tree.chain(root)) - 1
        self._edges: dict[tuple[int, int, int, bool], _Gathered] = {}
        self._boundary: dict[tuple[BlockRole, int], int] = {}
        self._known: dict[int, _Seen | None] = {}

    def add(self, source: int, target: int) -> None:
        """One operation uses another."""
        upper, lower = self._seen(source), self._seen(target)
        if upper is None and lower is None:
            return
        upper = upper or self._border(BlockRole.INPUT, source)
        lower = lower or self._border(BlockRole.OUTPUT, source)
        meet = 1  # calls of the block that is looked at are one
        while upper.chain[meet] == lower.chain[meet]:
            meet += 1
        if meet > upper.end:
            return  # inside a closed block
        gathered = self._gathered(upper, lower, meet, self._tree.leaf[source])
        gathered.edge.pairs.append((source, target))
        gathered.source_passes.add(self._tree.pass_of(upper.chain[meet]))
        gathered.target_passes.add(self._tree.pass_of(lower.chain[meet]))

    def finished(self) -> Iterator[VisibleEdge]:
        """The edges, with the passes they belong to."""
        for gathered in self._edges.values():
            sources, targets = (self._tree.blocks[block].passes for block, _ in gathered.ends)
            if gathered.edge.back or len(gathered.target_passes) < targets:
                gathered.edge.passes = _labeled(gathered.target_passes)
            elif len(gathered.source_passes) < sources:
                gathered.edge.passes = _labeled(gathered.source_passes)
            yield gathered.edge

    def _gathered(self, upper: _Seen, lower: _Seen, meet: int, tensor: int) -> _Gathered:
        above, below = [block for block, _ in upper.chain], [block for block, _ in lower.chain]
        back = not self._first(above[meet]) < self._first(below[meet])
        key = (above[upper.end], below[lower.end], above[meet - 1], back)
        if key not in self._edges:
            hops = hops_along(tensor, above[: upper.end + 1], below[: lower.end + 1], meet, back=back)
            edge = VisibleEdge(key[0], key[1], tuple(hops), back)
            self._edges[key] = _Gathered(edge, (upper.chain[meet], lower.chain[meet]))
        return self._edges[key]

    def _first(self, block: int) -> tuple[int, int]:
        """When a block ran first; a border is before or after everything else."""
        role = self._tree.blocks[block].role
        outside = self._boundary.get((role, self._tree.blocks[block].operations[0])) == block
        order = 0 if not outside else -1 if role is BlockRole.INPUT else 1
        return order, self._tree.blocks[block].operations[0]

    def _seen(self, operation: int) -> _Seen | None:
        if operation not in self._known:
            chain = self._tree.instances(operation)
            if len(chain) <= self._cut or chain[self._cut][0] != self._root:
                self._known[operation] = None  # outside the block that is looked at
            else:
                chain = chain[self._cut :]
                end = next(at for at, (block, _) in enumerate(chain) if block not in self._opened)
                self._known[operation] = _Seen(chain, end)
        return self._known[operation]

    def _border(self, role: BlockRole, operation: int) -> _Seen:
        """A node for a tensor that comes from outside the block that is looked at, or goes there."""
        lead = self._tree.blocks[self._tree.leaf[operation]].operations[0]
        if (role, lead) not in self._boundary:
            self._boundary[role, lead] = self._tree.add_boundary(role, self._root, lead)
        return _Seen(((self._root, -1), (self._boundary[role, lead], lead)), 1)


def _labeled(numbers: set[int]) -> str:
    runs = passes_text(sorted(numbers)).split(", ")
    short = (
        ", ".join(runs) if len(runs) <= LABELLED_PASSES else ", ".join([*runs[: LABELLED_PASSES - 1], "…", runs[-1]])
    )
    return f"pass {short}" if len(numbers) == 1 else f"passes {short}"
