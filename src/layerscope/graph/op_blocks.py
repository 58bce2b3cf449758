"""The operations of a pass as nested blocks: what a picture of the pass can show open or closed.

A block is one operation (all passes of its layer, when rolled), or a module call with the blocks inside it. A module
that holds a single operation is that operation. More children than can be ordered are cut into sections, in the order
in which they ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from layerscope.graph.layers import Naming
from layerscope.model.trace_record import Role, TraceRecord, field_of_all

MOST_CHILDREN = 400
SECTION, MOST_SECTIONS = 100, 150  # children of one section; sections of one block before they grow

Instance = tuple[int, int]  # a block, and which of its calls: two calls are two instances of a rolled block


class BlockRole(str, Enum):
    """What a block is."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"
    OPERATION = "operation"
    PARAMETER = "parameter"  # an operation that uses parameters
    MODULE = "module"
    SECTION = "section"  # neighbors out of too many children


@dataclass(slots=True)
class OpBlock:
    """One thing that can be drawn."""

    index: int
    parent: int  # -1 for the whole
    role: BlockRole
    path: str
    level: int  # modules around it
    operations: list[int] = field(default_factory=list)  # everything inside, in the order of the pass
    calls: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)

    @property
    def passes(self) -> int:
        """How often it ran."""
        return len(self.operations if not self.children else self.calls) or 1


class Nesting:
    """All blocks of a pass. Block 0 is the whole; `leaf` is the block of each operation."""

    def __init__(self, record: TraceRecord, naming: Naming, *, rolled: bool, kept: str | None = None) -> None:
        self.record, self.naming = record, naming
        self.blocks = [OpBlock(0, -1, BlockRole.MODULE, "", 0)]
        self._rolled, self._kept = rolled, kept
        self._call_of = field_of_all(record.operations, "call")
        self._of_call = self._call_blocks()
        self.leaf = self._leaves()
        self._dissolve_singles()
        self._adopt()
        for block in list(self.blocks):
            self._split(block)
        self._levels()
        self._chains: dict[int, tuple[int, ...]] = {}
        self._calls: dict[int, dict[int, int]] = {}
        self._numbers: dict[int, dict[int, int]] = {}

    def chain(self, block: int) -> tuple[int, ...]:
        """The blocks around a block, from the whole down to itself."""
        if (found := self._chains.get(block)) is None:
            parent = self.blocks[block].parent
            found = (block,) if parent < 0 else (*self.chain(parent), block)
            self._chains[block] = found
        return found

    def instances(self, operation: int) -> tuple[Instance, ...]:
        """The calls around an operation, from the whole down to itself."""
        leaf = self.leaf[operation]
        calls = self._calls_around(self._call_of[operation])
        found: list[Instance] = []
        call = -1
        for block in self.chain(leaf)[:-1]:
            call = calls.get(block, call)  # a section happens in the call around it
            found.append((block, call if block else -1))
        return (*found, (leaf, operation))

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
        block = OpBlock(len(self.blocks), around, role, "", self.blocks[around].level + 1, [operation])
        self.blocks.append(block)
        self.blocks[around].children.append(block.index)
        return block.index

    def _calls_around(self, call: int) -> dict[int, int]:
        if (found := self._calls.get(call)) is None:
            parent = self.record.calls[call].parent
            found = {**(self._calls_around(parent) if parent is not None else {}), self._of_call[call]: call}
            self._calls[call] = found
        return found

    def _call_blocks(self) -> list[int]:
        """The block of each module call. When rolled, calls that run the same layers at the same place share one."""
        inside = self._layers_of_calls() if self._rolled else []
        blocks: dict[tuple[int, str], list[tuple[int, set[int]]]] = {}
        of_call: list[int] = []
        for index, call in enumerate(self.record.calls):
            around = 0 if call.parent is None else of_call[call.parent]
            found = 0 if around == 0 and call.path == "" else None  # the model itself is the whole
            if found is None and self._rolled:
                known = blocks.setdefault((around, call.path), [])
                found = next((block for block, layers in known if layers & inside[index]), None)
            if found is None:
                found = self._add(around, BlockRole.MODULE, call.path)
            if found and self._rolled:
                known.append((found, inside[index]))
            of_call.append(found)
            self.blocks[found].calls.append(index)
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
        found: dict[object, int] = {}
        leaf = []
        roles, parameters = (field_of_all(self.record.operations, name) for name in ("role", "parameters"))
        paths = [call.path for call in self.record.calls]
        for index, (call, layer) in enumerate(zip(self._call_of, self.naming.layer, strict=True)):
            around = self._of_call[call]
            key = (around, layer) if self._rolled else index
            block = found.get(key)
            if block is None:
                role = _role(roles[index], has_parameters=bool(parameters[index]))
                block = found[key] = self._add(around, role, paths[call])
            self.blocks[block].operations.append(index)
            leaf.append(block)
        return leaf

    def _add(self, parent: int, role: BlockRole, path: str) -> int:
        self.blocks.append(OpBlock(len(self.blocks), parent, role, path, 0))
        return len(self.blocks) - 1

    def _dissolve_singles(self) -> None:
        """A module that holds one operation is drawn as that operation."""
        held = [0] * len(self.blocks)
        for leaf in dict.fromkeys(self.leaf):
            block = self.blocks[leaf].parent
            while block >= 0:
                held[block] += 1
                block = self.blocks[block].parent
        for leaf in dict.fromkeys(self.leaf):
            while (around := self.blocks[leaf].parent) > 0 and held[around] == 1 and not self._is_kept(around):
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

    def _split(self, block: OpBlock) -> None:
        if len(block.children) <= MOST_CHILDREN:
            return
        children = block.children
        size = max(SECTION, -(-len(children) // MOST_SECTIONS))
        block.children = []
        for start in range(0, len(children), size):
            section = self.blocks[self._add(block.index, BlockRole.SECTION, block.path)]
            section.children = children[start : start + size]
            section.calls = block.calls
            for child in section.children:
                self.blocks[child].parent = section.index
                section.operations.extend(self.blocks[child].operations)
            section.operations.sort()
            block.children.append(section.index)
            self._split(section)

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


def passes_text(numbers: Sequence[int]) -> str:
    """Pass numbers as people write them: `1–3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
