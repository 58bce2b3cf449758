"""The module calls of a run as nested blocks, and the data that flows between them.

A block is a call with those inside it, a tensor that was named, a *merge*, a *repeat* or a *section*. Where no calls
were recorded, the blocks are the modules, and nothing is known to flow.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from layerscope.graph.blocks import Block, BlockRole, BlockTree, Hop, hops_along
from layerscope.graph.order import NO_TENSOR
from layerscope.model.records import CallEdge, CallGraph, CallNode, ModuleNode, name_in

MODEL = "(model)"
LEAST_REPEATS, LEAST_SMALL = 3, 6  # blocks in a row that are folded; modules without anything inside, folded together
LONGEST_PERIOD = 8
MOST_COPIES = 4  # of a call that happened in several others, on average


@dataclass(slots=True)
class ModuleBlock(Block):
    """A call of a module, or what stands for several."""

    site: str = ""
    module: ModuleNode | None = None
    call: CallNode | None = None
    period: int = 1  # of a repeat: after how many children it begins again

    @property
    def is_group(self) -> bool:
        """Whether it stands for its children and is nothing by itself."""
        return self.role in (BlockRole.REPEAT, BlockRole.SECTION)


@dataclass(frozen=True, slots=True)
class Wire:
    """One tensor on its way inside one call."""

    source: int | None  # a block; None: it comes in through the call's input
    source_port: str
    target: int | None  # a block; None: it goes out through the call's output
    target_port: str
    back: bool = False  # into a call that came before


class ModuleBlocks(BlockTree[ModuleBlock]):
    """All blocks of a run's graph, and the wires inside each call."""

    def __init__(self, graph: CallGraph) -> None:
        super().__init__(ModuleBlock(0, -1, BlockRole.SECTION))
        self.wires: dict[int, list[Wire]] = {}  # by call
        self.is_flow_known = bool(graph.calls)
        self._modules = {module.path: module for module in graph.modules}
        self._alike: dict[object, int] = {}
        self._kinds: dict[int, int] = {}
        if graph.calls:
            self._add_calls(graph.calls)
            self._connect(graph.edges)
        else:
            self._add_modules(graph.modules)
        if len(self.blocks[0].children) == 1:
            self._drop_whole()
        elif self.blocks[0].is_group:  # a container that is not called itself
            self.blocks[0].module = self._modules.get("") or self._modules.get(MODEL)
        for block in list(self.blocks):
            self._fold(block)
            list(self.split(block))

    def around(self, block: int) -> int:
        """The call or whole that a block belongs to, whatever repeats and sections are between."""
        parent = self.blocks[block].parent
        while parent > 0 and self.blocks[parent].is_group:
            parent = self.blocks[parent].parent
        return parent

    def _add_calls(self, calls: Sequence[CallNode]) -> None:
        """Put each call into every call that it happened in, which may be several in different forwards."""
        inside: dict[str, list[CallNode]] = defaultdict(list)
        for call in calls:
            inside[call.parent].append(call)
        known = {call.site for call in calls}
        inside[""] += [call for call in calls if call.parent and call.parent not in known]
        most = MOST_COPIES * len(calls)
        waiting: list[tuple[int, CallNode, frozenset[str]]] = [(0, call, frozenset()) for call in inside[""][::-1]]
        while waiting:
            around, call, sites = waiting.pop()
            block = self.add(around, BlockRole.CALL)
            block.site, block.path, block.call = call.site, call.path, call
            if name_in(call.site, (call.path,)) != call.path:
                block.role = BlockRole.TENSOR
            block.module = self._modules.get(call.path) or self._modules.get("" if call.path == MODEL else call.path)
            self.blocks[around].children.append(block.index)
            within = sites | {call.site}
            if len(self.blocks) < most and block.role is BlockRole.CALL:
                waiting += [(block.index, each, within) for each in inside[call.site][::-1] if each.site not in within]

    def without_flow(self) -> list[ModuleBlock]:
        """Calls of which no forward was traced, so that nothing is known of the data that went in and came out."""
        wired = {end for wires in self.wires.values() for wire in wires for end in (wire.source, wire.target)}
        return [
            block
            for block in self.blocks[1:]
            if block.parent >= 0
            and block.call is not None
            and block.index not in wired
            and block.call.parent
            and (block.call.inputs or block.call.outputs)
        ]

    def _add_modules(self, modules: Iterable[ModuleNode]) -> None:
        known = {"": 0}
        for module in sorted(modules, key=lambda module: module.path not in ("", MODEL)):
            path = "" if module.path == MODEL else module.path
            around = path
            while around not in known or (around == path and path):
                around = around.rpartition(".")[0]
            block = self.add(known[around], BlockRole.MODULE)
            block.site, block.path, block.module = path or MODEL, path or MODEL, module
            self.blocks[known[around]].children.append(block.index)
            known[path] = block.index

    def _connect(self, edges: Iterable[CallEdge]) -> None:
        """Sorts the edges into the calls they lie in."""
        of_site: dict[str, list[int]] = defaultdict(list)
        for block in self.blocks[1:]:
            of_site[block.site].append(block.index)
        inside: dict[int, list[_End]] = defaultdict(list)
        for edge in edges:
            for source in of_site[edge.source]:
                for target in of_site[edge.target]:
                    self._add_end((source, edge.source_port, target, edge.target_port, edge.join), inside)
        for call, ends in inside.items():
            self._sort(call, ends)
            self.wires[call] = _Merging(self, call).run(ends)

    def _add_end(self, ends: tuple[int, str, int, str, str], inside: dict[int, list[_End]]) -> None:
        """Add an edge to the call it lies in, if its ends are side by side or one around the other."""
        source, _, target, target_port, _ = ends
        inner = self.blocks[source].parent, self.blocks[target].parent
        if source == target and not target_port.startswith("input"):
            inside[source].append((None, ends[1], None, *ends[3:]))
        elif inner[0] == inner[1]:  # an outermost call may take what it gave before
            inside[inner[0]].append(ends)
        elif inner[1] == source:
            inside[source].append((None, *ends[1:]))
        elif inner[0] == target:
            inside[target].append((source, ends[1], None, *ends[3:]))

    def _sort(self, call: int, ends: Iterable[_End]) -> None:
        """Put the calls inside one after those they take data from: they stand as they were first seen, some late."""
        children = self.blocks[call].children
        order = {child: at for at, child in enumerate(children)}
        givers: dict[int, set[int]] = defaultdict(set)
        for source, _, target, *_ in ends:
            if source is not None and target is not None and source != target:
                givers[target].add(source)
        if any(order[giver] > order[child] for child, those in givers.items() for giver in those):
            self.blocks[call].children = _after_givers(children, givers)

    def _drop_whole(self) -> None:
        """One outermost call is the whole itself."""
        only = self.blocks[self.blocks[0].children[0]]
        self.blocks[0] = replace(only, index=0, parent=-1)
        for child in only.children:
            self.blocks[child].parent = 0
        self.wires.pop(0, None)
        if only.index in self.wires:
            self.wires[0] = self.wires.pop(only.index)
        only.children, only.parent = [], -1

    def _fold(self, block: ModuleBlock) -> None:
        """Puts children in a row that are built alike into one block."""
        ran = [child for child in block.children if self.blocks[child].role is not BlockRole.MERGE]
        repeats = list(_repeats([self._kind(child) for child in ran], lambda at: bool(self.blocks[ran[at]].children)))
        if block.index == 0 and len(repeats) == 1 and repeats[0][1] == len(ran):
            return  # nothing else would be left to see
        for start, length, period in repeats:
            group = self.add(block.index, BlockRole.REPEAT)
            group.period = period
            self._gather(block, ran[start : start + length], group)

    def _gather(self, block: ModuleBlock, chosen: Sequence[int], group: ModuleBlock) -> None:
        """Moves children, and the merges between them, into a group of their own."""
        inside = set(chosen)
        for child in block.children:  # a merge stands after what it takes
            if self.blocks[child].role is BlockRole.MERGE:
                wires = self.wires.get(self.around(child), ())
                takes = {wire.source for wire in wires if wire.target == child}
                gives = {wire.target for wire in wires if wire.source == child}
                if takes & inside and gives & set(chosen):
                    inside.add(child)
        group.children = [child for child in block.children if child in inside]
        at = block.children.index(chosen[0])
        block.children = [
            *(child for child in block.children[:at] if child not in inside),
            group.index,
            *(child for child in block.children[at:] if child not in inside),
        ]
        for child in group.children:
            self.blocks[child].parent = group.index

    def _kind(self, index: int) -> int:
        """A number that is the same for blocks that are built alike."""
        if index not in self._kinds:
            block = self.blocks[index]
            module = block.module
            built = (module.class_name, module.parameters, module.detail) if module else (block.role, block.site)
            key = (block.role, built, tuple(self._kind(child) for child in block.children))
            self._kinds[index] = self._alike.setdefault(key, len(self._alike))
        return self._kinds[index]


def _after_givers(children: Sequence[int], givers: Mapping[int, set[int]]) -> list[int]:
    """The children in their order, but each after those that it takes data from; in a circle the first goes first."""
    order = {child: at for at, child in enumerate(children)}
    takers: dict[int, list[int]] = defaultdict(list)
    for child, those in givers.items():
        for giver in those:
            takers[giver].append(child)
    missing = {child: len(givers.get(child, ())) for child in children}
    free = [order[child] for child in children if not missing[child]]
    placed: dict[int, None] = {}
    for first in children:
        if not free and first not in placed:
            free = [order[first]]
        while free:
            child = children[heapq.heappop(free)]
            if child in placed:
                continue
            placed[child] = None
            for taker in takers[child]:
                missing[taker] -= 1
                if not missing[taker]:
                    heapq.heappush(free, order[taker])
    return list(placed)


def _repeats(kinds: Sequence[int], is_block: Callable[[int], bool]) -> Iterator[tuple[int, int, int]]:
    """Start, length and period of stretches that repeat; the one that covers most comes first where several could be.

    >>> list(_repeats([0, 1, 1, 1, 1, 2], lambda at: True))
    [(1, 4, 1)]
    """
    at = 0
    while at < len(kinds):
        best = (0, 0)
        for period in range(1, min(LONGEST_PERIOD, (len(kinds) - at) // 2) + 1):
            length = period
            while at + length < len(kinds) and kinds[at + length] == kinds[at + length - period]:
                length += 1
            length -= length % period
            if length < LEAST_REPEATS * period or length <= best[0]:
                continue
            if length >= LEAST_SMALL or any(is_block(at + k) for k in range(period)):
                best = (length, period)
        if best[0]:
            yield at, *best
        at += max(1, best[0])


Source = tuple[int | None, str]
_End = tuple[int | None, str, int | None, str, str]  # source and its port, target and its port, where several met


class _Merging:
    """Wires of one call; where several go into one port, they meet in a merge, one for each tensor in which they met.

    A merge whose sources are among those of a later one goes on into it: a chain of residual sums, or of
    concatenations, is then drawn as a chain.
    """

    def __init__(self, tree: ModuleBlocks, call: int) -> None:
        self._tree, self._call = tree, call
        self._children = tree.blocks[call].children
        self._order: dict[int | None, float] = {child: at for at, child in enumerate(self._children)}
        self._merges: list[tuple[frozenset[Source], str, int]] = []  # with where they met, "" if that is not known
        self._placed: list[tuple[float, int]] = [(at, child) for child, at in self._order.items() if child is not None]
        self._wires: list[Wire] = []

    def run(self, edges: Iterable[_End]) -> list[Wire]:
        arriving: dict[Source, list[Source]] = defaultdict(list)
        joins: dict[Source, str] = {}
        for source, source_port, target, target_port, join in edges:
            joins[target, target_port] = join or joins.get((target, target_port), "")
            if self._is_back(source, target):
                back = Wire(source, source_port, target, target_port, back=True)
                self._wires += [] if back in self._wires else [back]
            elif (source, source_port) not in arriving[target, target_port]:
                arriving[target, target_port].append((source, source_port))
        ends = sorted(arriving, key=lambda end: len(self._order) if end[0] is None else self._order[end[0]])
        for target, port in ends:
            sources = arriving[target, port]
            if len(sources) > 1:
                sources = [(self._merge(frozenset(sources), joins[target, port], target), "")]
            self._wires += [Wire(*source, target, port) for source in sources]
        self._tree.blocks[self._call].children = [child for _, child in sorted(self._placed)]
        return self._wires

    def _is_back(self, source: int | None, target: int | None) -> bool:
        return source is not None and target is not None and self._order[source] >= self._order[target]

    def _merge(self, sources: frozenset[Source], join: str, target: int | None) -> int:
        for those, where, merge in self._merges:
            if those == sources and (where == join or "" in (where, join)):
                return merge
        merge = self._tree.add(self._call, BlockRole.MERGE).index
        left = set(sources)
        known = Counter(those for those, _, _ in self._merges)
        for those, _, other in sorted(self._merges, key=lambda entry: -len(entry[0])):
            if those <= left and those != sources and known[those] == 1:  # of two of the same it is not known which
                left -= those
                self._wires.append(Wire(other, "", merge, ""))
        self._wires += [
            Wire(*source, merge, "") for source in sorted(left, key=lambda s: (-1 if s[0] is None else s[0], s[1]))
        ]
        self._merges.append((sources, join, merge))
        at = float(len(self._children)) if target is None else self._order[target]
        self._order[merge] = at - 0.5
        self._placed.append((at - 0.5, merge))
        return merge


class ModuleFlows:
    """Where the tensors of a run's graph go; each call numbers what comes in anew. Below zero nothing is drawn."""

    def __init__(self, tree: ModuleBlocks) -> None:
        self._tree = tree
        self._numbers: dict[object, int] = {}
        self._hops: dict[int, list[Hop]] = defaultdict(list)
        self._enters: dict[tuple[int, int], int] = {}  # child and tensor → the tensor inside
        self._leaves: dict[tuple[int, str], int] = {}  # call and port → the tensor inside
        self._ports: dict[int, tuple[int, str]] = {}  # tensor → the call and port it comes from
        self._same = self._same_ports()
        for call, wires in tree.wires.items():
            for wire in wires:
                self._add(call, wire)

    def hops(self, group: int) -> Iterable[Hop]:
        """The hops in one group; where nothing is known to flow, its children stand one below the other."""
        if group in self._hops:
            return dict.fromkeys(self._hops[group])
        below = enumerate(pairwise(self._tree.blocks[group].children))
        return [Hop(group, NO_TENSOR - 1 - at, source, target) for at, (source, target) in below]

    def inside(self, child: int, tensor: int, *, top: bool) -> int:
        """The tensor inside a child that continues one at its top or bottom border."""
        if self._tree.blocks[child].is_group:
            return tensor
        if top:
            return self._enters.get((child, tensor), NO_TENSOR)
        return self._leaves.get(self._ports.get(tensor, (-1, "")), NO_TENSOR)

    def inputs(self, call: int) -> dict[str, int]:
        """The tensor that comes in at each input of a call."""
        wires = self._tree.wires.get(call, ())
        return {wire.source_port: self._tensor(call, wire) for wire in wires if wire.source is None}

    def outputs(self, call: int) -> dict[str, int]:
        """The tensor inside a call that goes out at each output."""
        return {port: tensor for (at, port), tensor in self._leaves.items() if at == call}

    def _same_ports(self) -> dict[tuple[int, str], str]:
        """The inputs of calls that are given one and the same tensor, by the first of them."""
        first: dict[tuple[int, int | None, str], str] = {}
        same: dict[tuple[int, str], str] = {}
        for wires in self._tree.wires.values():
            for wire in wires:
                if wire.target is not None and not wire.back:
                    key = (wire.target, wire.source, wire.source_port)
                    same[wire.target, wire.target_port] = first.setdefault(key, wire.target_port)
        return same

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _inner(self, call: int, port: str) -> int:
        return self._number((call, "in", self._same.get((call, port), port)))

    def _tensor(self, call: int, wire: Wire) -> int:
        if wire.source is None:
            return self._inner(call, wire.source_port)
        tensor = self._number((wire.source, wire.source_port))
        self._ports[tensor] = (wire.source, wire.source_port)
        return tensor

    def _chain(self, call: int, block: int | None) -> list[int]:
        """A call and the blocks from just inside it down to one of its own, through repeats and sections."""
        chain: list[int] = []
        while block is not None and block != call:
            chain.append(block)
            block = self._tree.blocks[block].parent
        return [call, *reversed(chain)]

    def _add(self, call: int, wire: Wire) -> None:
        tensor = self._tensor(call, wire)
        if wire.target is None:
            self._leaves[call, wire.target_port] = tensor
        elif self._tree.blocks[wire.target].children:
            self._enters[wire.target, tensor] = self._inner(wire.target, wire.target_port)
        upper, lower = self._chain(call, wire.source), self._chain(call, wire.target)
        meet = 1
        while meet + 1 < min(len(upper), len(lower)) and upper[meet] == lower[meet]:
            meet += 1
        for hop in hops_along(tensor, upper, lower, meet, back=wire.back):
            self._hops[hop.group].append(hop)
