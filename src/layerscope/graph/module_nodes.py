"""The calls of a run as nested parts: what a picture of the module graph can show open or closed.

A part is a call with those inside it, a tensor that was named, a *merge* (where several flows go on as one), a *repeat*
(calls in a row that are built alike) or a *section* (neighbors out of too many). Where no calls were recorded, the
parts are the modules, and nothing flows.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from layerscope.graph.op_blocks import MOST_CHILDREN, MOST_SECTIONS, SECTION
from layerscope.model.records import CallEdge, CallGraph, CallNode, ModuleNode, name_in

MODEL = "(model)"
LEAST_REPEATS, LEAST_SMALL = 3, 6  # blocks in a row that are folded; modules without anything inside, folded together
LONGEST_PERIOD = 8
MOST_COPIES = 4  # of a call that happened in several others, on average


class ModuleBoxRole(str, Enum):
    """What a part is."""

    CALL = "call"
    TENSOR = "tensor"  # named by the user
    MODULE = "module"  # of a run that recorded no calls
    MERGE = "merge"
    REPEAT = "repeat"
    SECTION = "section"


@dataclass(slots=True)
class ModuleBox:
    """One thing that can be drawn."""

    index: int
    parent: int  # -1 for the outermost
    role: ModuleBoxRole
    site: str = ""
    path: str = ""
    module: ModuleNode | None = None
    call: CallNode | None = None
    children: list[int] = field(default_factory=list)  # in the order in which they ran
    period: int = 1  # of a repeat: after how many children it begins again

    @property
    def is_group(self) -> bool:
        """Whether it stands for its children and is nothing by itself."""
        return self.role in (ModuleBoxRole.REPEAT, ModuleBoxRole.SECTION)


@dataclass(frozen=True, slots=True)
class Wire:
    """One tensor on its way inside one call."""

    source: int | None  # a part; None: it comes in through the call's input
    source_port: str
    target: int | None  # a part; None: it goes out through the call's output
    target_port: str
    back: bool = False  # into a call that came before


class ModuleBoxes:
    """All parts of a run's graph, and the wires inside each call. Part 0 is the whole."""

    def __init__(self, graph: CallGraph) -> None:
        self.parts: list[ModuleBox] = [ModuleBox(0, -1, ModuleBoxRole.SECTION)]
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
        if len(self.parts[0].children) == 1:
            self._drop_whole()
        elif self.parts[0].is_group:  # a container that is not called itself
            self.parts[0].module = self._modules.get("") or self._modules.get(MODEL)
        for part in list(self.parts):
            self._fold(part)
            self._split(part)

    def add(self, parent: int, role: ModuleBoxRole) -> ModuleBox:
        """A new part; its parent learns of it where its place among the children is known."""
        part = ModuleBox(len(self.parts), parent, role)
        self.parts.append(part)
        return part

    def around(self, part: int) -> int:
        """The call or whole that a part belongs to, whatever repeats and sections are between."""
        parent = self.parts[part].parent
        while parent > 0 and self.parts[parent].is_group:
            parent = self.parts[parent].parent
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
            part = self.add(around, ModuleBoxRole.CALL)
            part.site, part.path, part.call = call.site, call.path, call
            if name_in(call.site, (call.path,)) != call.path:
                part.role = ModuleBoxRole.TENSOR
            part.module = self._modules.get(call.path) or self._modules.get("" if call.path == MODEL else call.path)
            self.parts[around].children.append(part.index)
            within = sites | {call.site}
            if len(self.parts) < most and part.role is ModuleBoxRole.CALL:
                waiting += [(part.index, each, within) for each in inside[call.site][::-1] if each.site not in within]

    def without_flow(self) -> list[ModuleBox]:
        """Calls of which no forward was traced, so that nothing is known of the data that went in and came out."""
        wired = {end for wires in self.wires.values() for wire in wires for end in (wire.source, wire.target)}
        return [
            part
            for part in self.parts[1:]
            if part.parent >= 0
            and part.call is not None
            and part.index not in wired
            and part.call.parent
            and (part.call.inputs or part.call.outputs)
        ]

    def _add_modules(self, modules: Iterable[ModuleNode]) -> None:
        known = {"": 0}
        for module in sorted(modules, key=lambda module: module.path not in ("", MODEL)):
            path = "" if module.path == MODEL else module.path
            around = path
            while around not in known or (around == path and path):
                around = around.rpartition(".")[0]
            part = self.add(known[around], ModuleBoxRole.MODULE)
            part.site, part.path, part.module = path or MODEL, path or MODEL, module
            self.parts[known[around]].children.append(part.index)
            known[path] = part.index

    def _connect(self, edges: Iterable[CallEdge]) -> None:
        """Sorts the edges into the calls they lie in."""
        of_site: dict[str, list[int]] = defaultdict(list)
        for part in self.parts[1:]:
            of_site[part.site].append(part.index)
        inside: dict[int, list[_End]] = defaultdict(list)
        for edge in edges:
            for source in of_site[edge.source]:
                for target in of_site[edge.target]:
                    self._add_end((source, edge.source_port, target, edge.target_port, edge.join), inside)
        for call, found in inside.items():
            self._sort(call, found)
            self.wires[call] = _Merging(self, call).run(found)

    def _add_end(self, ends: tuple[int, str, int, str, str], inside: dict[int, list[_End]]) -> None:
        """Add an edge to the call it lies in, if its ends are side by side or one around the other."""
        source, _, target, target_port, _ = ends
        inner = self.parts[source].parent, self.parts[target].parent
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
        children = self.parts[call].children
        order = {child: at for at, child in enumerate(children)}
        givers: dict[int, set[int]] = defaultdict(set)
        for source, _, target, *_ in ends:
            if source is not None and target is not None and source != target:
                givers[target].add(source)
        if any(order[giver] > order[child] for child, those in givers.items() for giver in those):
            self.parts[call].children = _after_givers(children, givers)

    def _drop_whole(self) -> None:
        """One outermost call is the whole itself."""
        only = self.parts[self.parts[0].children[0]]
        self.parts[0] = ModuleBox(0, -1, only.role, only.site, only.path, only.module, only.call, only.children)
        for child in only.children:
            self.parts[child].parent = 0
        self.wires.pop(0, None)
        if only.index in self.wires:
            self.wires[0] = self.wires.pop(only.index)
        only.children, only.parent = [], -1

    def _fold(self, part: ModuleBox) -> None:
        """Puts children in a row that are built alike into one part."""
        ran = [child for child in part.children if self.parts[child].role is not ModuleBoxRole.MERGE]
        repeats = list(_repeats([self._kind(child) for child in ran], lambda at: bool(self.parts[ran[at]].children)))
        if part.index == 0 and len(repeats) == 1 and repeats[0][1] == len(ran):
            return  # nothing else would be left to see
        for start, length, period in repeats:
            group = self.add(part.index, ModuleBoxRole.REPEAT)
            group.period = period
            self._gather(part, ran[start : start + length], group)

    def _gather(self, part: ModuleBox, chosen: Sequence[int], group: ModuleBox) -> None:
        """Moves children, and the merges between them, into a group of their own."""
        inside = set(chosen)
        for child in part.children:  # a merge stands after what it takes
            if self.parts[child].role is ModuleBoxRole.MERGE:
                wires = self.wires.get(self.around(child), ())
                takes = {wire.source for wire in wires if wire.target == child}
                gives = {wire.target for wire in wires if wire.source == child}
                if takes & inside and gives & set(chosen):
                    inside.add(child)
        group.children = [child for child in part.children if child in inside]
        at = part.children.index(chosen[0])
        part.children = [
            *(child for child in part.children[:at] if child not in inside),
            group.index,
            *(child for child in part.children[at:] if child not in inside),
        ]
        for child in group.children:
            self.parts[child].parent = group.index

    def _split(self, part: ModuleBox) -> None:
        if len(part.children) <= MOST_CHILDREN:
            return
        children, part.children = part.children, []
        size = max(SECTION, -(-len(children) // MOST_SECTIONS))
        for start in range(0, len(children), size):
            section = self.add(part.index, ModuleBoxRole.SECTION)
            section.children = children[start : start + size]
            for child in section.children:
                self.parts[child].parent = section.index
            part.children.append(section.index)

    def _kind(self, index: int) -> int:
        """A number that is the same for parts that are built alike."""
        if index not in self._kinds:
            part = self.parts[index]
            module = part.module
            built = (module.class_name, module.parameters, module.detail) if module else (part.role, part.site)
            key = (part.role, built, tuple(self._kind(child) for child in part.children))
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

    def __init__(self, parts: ModuleBoxes, call: int) -> None:
        self._parts, self._call = parts, call
        self._children = parts.parts[call].children
        self._order: dict[int | None, float] = {child: at for at, child in enumerate(self._children)}
        self._merges: list[tuple[frozenset[Source], str, int]] = []  # with where they met, "" if that is not known
        self._placed: list[tuple[float, int]] = [(at, child) for child, at in self._order.items() if child is not None]
        self._wires: list[Wire] = []

    def run(self, found: Iterable[_End]) -> list[Wire]:
        arriving: dict[Source, list[Source]] = defaultdict(list)
        joins: dict[Source, str] = {}
        for source, source_port, target, target_port, join in found:
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
        self._parts.parts[self._call].children = [child for _, child in sorted(self._placed)]
        return self._wires

    def _is_back(self, source: int | None, target: int | None) -> bool:
        return source is not None and target is not None and self._order[source] >= self._order[target]

    def _merge(self, sources: frozenset[Source], join: str, target: int | None) -> int:
        for those, where, merge in self._merges:
            if those == sources and (where == join or "" in (where, join)):
                return merge
        merge = self._parts.add(self._call, ModuleBoxRole.MERGE).index
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
