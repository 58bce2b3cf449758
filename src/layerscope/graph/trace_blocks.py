"""The operations of a trace as nested blocks, and the edges between them.

A block is one operation (all passes of its layer, when rolled), or a module call with the blocks inside it. A module
that holds a single operation is that operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from layerscope.graph.blocks import Block, BlockRole, BlockTree, Hop, hops_along
from layerscope.graph.layers import Naming
from layerscope.graph.order import NO_TENSOR
from layerscope.model.trace_record import Role, TraceRecord, field_of_all

Instance = tuple[int, int]  # a block, and which of its calls: two calls are two instances of a rolled block


@dataclass(slots=True)
class TraceBlock(Block):
    """An operation, or a module with what is inside it."""

    operations: list[int] = field(default_factory=list)  # everything inside, in the order of the pass
    calls: list[int] = field(default_factory=list)

    @property
    def passes(self) -> int:
        """How often it ran."""
        return len(self.operations if not self.children else self.calls) or 1


class TraceBlocks(BlockTree[TraceBlock]):
    """All blocks of a trace; `leaf` is the block of each operation."""

    def __init__(self, record: TraceRecord, naming: Naming, *, rolled: bool, kept: str | None = None) -> None:
        self.record, self.naming = record, naming
        super().__init__(TraceBlock(0, -1, BlockRole.MODULE))
        self._rolled, self._kept = rolled, kept
        self._call_of = field_of_all(record.operations, "call")
        self._of_call = self._call_blocks()
        self.leaf = self._leaves()
        self._dissolve_singles()
        self._adopt()
        for block in list(self.blocks):
            for section in self.split(block):
                section.path, section.calls = block.path, block.calls
                section.operations = sorted(op for child in section.children for op in self.blocks[child].operations)
        self._levels()
        self._calls: dict[int, dict[int, int]] = {}
        self._numbers: dict[int, dict[int, int]] = {}

    def instances(self, operation: int) -> tuple[Instance, ...]:
        """The calls around an operation, from the whole down to itself."""
        leaf = self.leaf[operation]
        calls = self._calls_around(self._call_of[operation])
        instances: list[Instance] = []
        call = -1
        for block in self.chain(leaf)[:-1]:
            call = calls.get(block, call)  # a section happens in the call around it
            instances.append((block, call if block else -1))
        return (*instances, (leaf, operation))

    def pass_of(self, instance: Instance) -> int:
        """Which pass of its block an instance is, from 1."""
        at, which = instance
        if at not in self._numbers:
            block = self.blocks[at]
            among = block.calls if block.children else block.operations
            self._numbers[at] = {each: number for number, each in enumerate(among, 1)}
        return self._numbers[at].get(which, 1)

    def add_boundary(self, role: BlockRole, around: int, operation: int) -> int:
        """A block that stands for a tensor crossing the border of the block that is looked at."""
        block = self.add(around, role)
        block.level, block.operations = self.blocks[around].level + 1, [operation]
        self.blocks[around].children.append(block.index)
        return block.index

    def _calls_around(self, call: int) -> dict[int, int]:
        if (calls := self._calls.get(call)) is None:
            parent = self.record.calls[call].parent
            calls = {**(self._calls_around(parent) if parent is not None else {}), self._of_call[call]: call}
            self._calls[call] = calls
        return calls

    def _call_blocks(self) -> list[int]:
        """The block of each module call. When rolled, calls that run the same layers at the same place share one."""
        inside = self._layers_of_calls() if self._rolled else []
        blocks: dict[tuple[int, str], list[tuple[int, set[int]]]] = {}
        of_call: list[int] = []
        for index, call in enumerate(self.record.calls):
            around = 0 if call.parent is None else of_call[call.parent]
            block_of = 0 if around == 0 and call.path == "" else None  # the model itself is the whole
            if block_of is None and self._rolled:
                known = blocks.setdefault((around, call.path), [])
                block_of = next((block for block, layers in known if layers & inside[index]), None)
            if block_of is None:
                block_of = self.add(around, BlockRole.MODULE, call.path).index
            if block_of and self._rolled:
                known.append((block_of, inside[index]))
            of_call.append(block_of)
            self.blocks[block_of].calls.append(index)
        return of_call

    def _layers_of_calls(self) -> list[set[int]]:
        """The layers that run in each call, those of the calls inside it as well."""
        inside: list[set[int]] = [set() for _ in self.record.calls]
        for call, layer in zip(self._call_of, self.naming.layer, strict=True):
            inside[call].add(layer)
        for index in range(len(inside) - 1, -1, -1):  # a call is recorded after the one it happened in
            parent = self.record.calls[index].parent
            if parent is not None:
                inside[parent] |= inside[index]
        return inside

    def _leaves(self) -> list[int]:
        block_of: dict[object, int] = {}
        leaf = []
        roles, parameters = (field_of_all(self.record.operations, name) for name in ("role", "parameters"))
        paths = [call.path for call in self.record.calls]
        for index, (call, layer) in enumerate(zip(self._call_of, self.naming.layer, strict=True)):
            around = self._of_call[call]
            key = (around, layer) if self._rolled else index
            block = block_of.get(key)
            if block is None:
                role = _role(roles[index], has_parameters=bool(parameters[index]))
                block = block_of[key] = self.add(around, role, paths[call]).index
            self.blocks[block].operations.append(index)
            leaf.append(block)
        return leaf

    def _dissolve_singles(self) -> None:
        """A module that holds one operation is drawn as that operation."""
        leaves_in = [0] * len(self.blocks)
        for leaf in dict.fromkeys(self.leaf):
            block = self.blocks[leaf].parent
            while block >= 0:
                leaves_in[block] += 1
                block = self.blocks[block].parent
        for leaf in dict.fromkeys(self.leaf):
            while (around := self.blocks[leaf].parent) > 0 and leaves_in[around] == 1 and not self._is_kept(around):
                self.blocks[leaf].parent = self.blocks[around].parent

    def _is_kept(self, block: int) -> bool:
        return self._kept is not None and self.blocks[block].path == self._kept

    def _adopt(self) -> None:
        """Children and operations of every block, in the order of the pass."""
        for leaf in dict.fromkeys(self.leaf):
            block = leaf
            while (parent := self.blocks[block].parent) >= 0:
                self.blocks[parent].operations.extend(self.blocks[leaf].operations)
                self.blocks[parent].children.append(block)
                block = parent
        for each in self.blocks:
            each.operations.sort()
            each.children = sorted(set(each.children), key=lambda child: self.blocks[child].operations[0])

    def _levels(self) -> None:
        """How many modules are around each block; a section adds none."""
        waiting = [0]
        while waiting:
            block = self.blocks[waiting.pop()]
            for child in block.children:
                is_section = self.blocks[child].role is BlockRole.SECTION
                self.blocks[child].level = block.level + (0 if is_section else 1)
            waiting.extend(block.children)


def _role(role: Role, *, has_parameters: bool) -> BlockRole:
    if role is not Role.OPERATION:
        return BlockRole(role.value)
    return BlockRole.PARAMETER if has_parameters else BlockRole.OPERATION


class TraceFlows:
    """The edges of a trace with everything open, made for one group when it is needed."""

    def __init__(self, tree: TraceBlocks) -> None:
        self._tree = tree
        self._parents: Sequence[Sequence[int]] = field_of_all(tree.record.operations, "parents")

    @cached_property
    def children(self) -> Sequence[Sequence[int]]:
        """The operations that took each operation's result."""
        children: list[list[int]] = [[] for _ in self._parents]
        for operation, parents in enumerate(self._parents):
            for parent in dict.fromkeys(parents):
                children[parent].append(operation)
        return children

    def hops(self, group: int) -> list[Hop]:
        """The hops in one group, in the order of the pass; a tensor is the block that computed it."""
        edges: dict[tuple[int, int, int, bool], list[Hop]] = {}
        tree, end = self._tree, len(self._tree.chain(group)) + 1
        for source, target in self._touching(group):
            upper, lower = tree.instances(source), tree.instances(target)
            meet = next(at for at, pair in enumerate(zip(upper, lower, strict=False)) if pair[0] != pair[1])
            (above, _), (below, _) = upper[meet], lower[meet]
            back = not tree.blocks[above].operations[0] < tree.blocks[below].operations[0]
            key = (tree.leaf[source], tree.leaf[target], upper[meet - 1][0], back)
            if key not in edges and meet < end:  # else it lies in one of the children
                hops = hops_along(key[0], tree.chain(key[0])[:end], tree.chain(key[1])[:end], meet, back=back)
                edges[key] = [hop for hop in hops if hop.group == group]
        return [hop for hops in edges.values() for hop in hops]

    def inside(self, child: int, tensor: int, *, top: bool) -> int:
        """The tensor inside a child that continues one at its top or bottom border: the same, if it has an inside."""
        return tensor if self._tree.blocks[child].children else NO_TENSOR

    def _touching(self, group: int) -> Iterator[tuple[int, int]]:
        """Edges with an end in a group, without those that stay in one call of one of its blocks."""
        blocks = self._tree.blocks
        inside = [blocks[child] for child in blocks[group].children]
        child_of = {op: child.index for child in inside for op in child.operations}
        several = {child.index for child in inside if not child.children or len(child.calls) > 1}
        outside = {op for at in blocks[group].operations for op in self.children[at]} - child_of.keys() if group else ()
        for target in sorted((*child_of, *outside)):
            below = child_of.get(target)
            for source in dict.fromkeys(self._parents[target]):
                above = child_of.get(source)
                if above != below or (above is not None and above in several):
                    yield source, target


def passes_text(numbers: Sequence[int]) -> str:
    """Pass numbers as people write them: `1–3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
