"""The graph of a trace as the page shows it: of a large one its modules first, and what is in a group when it opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.graph.blocks import BlockRole
from layerscope.graph.collapse import readable
from layerscope.graph.order import GroupOrderings
from layerscope.graph.trace_blocks import TraceBlock, TraceBlocks, TraceFlows
from layerscope.model.records import Floats
from layerscope.model.trace_record import Role, TraceRecord, field_of_all
from layerscope.views.nested_graph import GroupOrder, box_width, facts_text, group_order, title_width
from layerscope.views.wording import TraceWording, amounts

SENT_WHOLE = 4000  # blocks of a graph that is sent with the order of all its groups, and with all facts


@dataclass(frozen=True, slots=True)
class TraceNumbers:
    """A field of operations, such as their time, by part of the graph."""

    name: str
    parts: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class Crumb:
    """One of the modules around something."""

    id: int
    title: str


@dataclass(frozen=True, slots=True)
class TraceParts:
    """Some parts of the graph of a trace: what `NestedGraph` says of each."""

    parts: tuple[int, ...]  # their numbers
    parents: tuple[int, ...]
    roles: tuple[str, ...]
    names: tuple[str, ...]
    details: tuple[str, ...]
    widths: tuple[int, ...]
    title_widths: tuple[int, ...]
    sites: tuple[str, ...]
    facts: tuple[str, ...]
    operations: tuple[int, ...]  # the first one of each; of a module the one whose tensor it gives


@dataclass(frozen=True, slots=True)
class TraceGroups:
    """What is in some groups, beside the modules that are known already, and the order of all that is in them."""

    operations: TraceParts
    groups: tuple[GroupOrder, ...]


@dataclass(frozen=True, slots=True)
class TracePicture:
    """The graph of a trace: its modules, and what is in those that are open at first, or in all if they are few."""

    title: str
    count: int  # of all parts
    opened: tuple[int, ...]
    modules: TraceParts
    inside: TraceGroups


def crumbs(tree: TraceBlocks, block: int) -> tuple[Crumb, ...]:
    """The blocks around a block and itself, from the whole on."""

    def title(at: int) -> str:
        block = tree.blocks[at]
        if not at:
            return tree.record.model
        if block.role is BlockRole.SECTION:
            return f"operations {block.operations[0]}–{block.operations[-1]}"
        return block.path

    return tuple(Crumb(at, title(at)) for at in tree.chain(block))


class TraceGraph:
    """The graph of one trace, kept while it is looked at. Its parts are the blocks of the tree.

    Of a large one the page gets the modules at first, and what is in a group when that is opened.
    """

    def __init__(self, tree: TraceBlocks) -> None:
        self.tree = tree
        self.flows = TraceFlows(tree)
        self._blocks = tree.blocks
        self._groups = [block.index for block in tree.blocks if block.children]
        self._is_small = len(self._blocks) <= SENT_WHOLE
        self._wording = TraceWording(tree)
        self._orders = GroupOrderings(tree.blocks, self.flows)

    def view(self) -> TracePicture:
        """Everything that the page needs at first."""
        opened = sorted(readable(self.tree, 0))
        sent = self._groups if self._is_small else opened
        return TracePicture(
            title=self.tree.record.model,
            count=len(self._blocks),
            opened=tuple(opened),
            modules=self._parts(self._groups, with_facts=self._is_small),
            inside=self.groups(sent),
        )

    def groups(self, of: Sequence[int]) -> TraceGroups:
        """What is in some groups, and its order; modules among it where they were sent without facts."""
        inside = [child for group in of for child in self._blocks[group].children]
        sent = [child for child in inside if not (self._is_small and self._blocks[child].children)]
        return TraceGroups(self._parts(sent, with_facts=True), tuple(self.group(index) for index in of))

    def _parts(self, of: Sequence[int], *, with_facts: bool) -> TraceParts:
        blocks = [self._blocks[index] for index in of]
        words = [self._words(block) for block in blocks]
        widths = [box_width(*each, opens=bool(block.children)) for each, block in zip(words, blocks, strict=True)]
        return TraceParts(
            parts=tuple(of),
            parents=tuple(block.parent for block in blocks),
            roles=tuple(block.role.value for block in blocks),
            names=tuple(name for name, _ in words),
            details=tuple(detail for _, detail in words),
            widths=tuple(widths),
            title_widths=tuple(title_width(name) for name, _ in words),
            sites=tuple(map(self._key, blocks)),
            facts=tuple(
                facts_text(self._wording.facts(block)) if with_facts or not block.index else "" for block in blocks
            ),
            operations=tuple(
                (self._wording.returned(block) if block.children else block.operations)[0] for block in blocks
            ),
        )

    def group(self, index: int) -> GroupOrder:
        """The order of one group."""
        ordered = self._orders.of(index)
        inputs, outputs = (self._ports(ordered.ordering.ports(top=top)) for top in (True, False))
        return group_order(index, ordered, inputs, outputs)

    def has_group(self, index: int) -> bool:
        """Whether the number is that of a block with something inside."""
        return 0 <= index < len(self._blocks) and bool(self._blocks[index].children)

    def numbers(self, field: str) -> tuple[Floats, Floats]:
        """A field of operations, such as their time, added up for each block that has it."""
        values, count = amounts(self.tree.record.operations, field), len(self._blocks)
        known = ~np.isnan(values)
        leaf = np.array(self.tree.leaf, np.int64)[known]
        sums: Floats = np.bincount(leaf, values[known], count).astype(np.float64)
        counts = np.bincount(leaf, minlength=count)
        for index in sorted(self._groups, key=lambda index: -len(self.tree.chain(index))):  # innermost first
            children = self._blocks[index].children
            sums[index], counts[index] = sums[children].sum(), counts[children].sum()
        has = np.flatnonzero(counts)
        return has.astype(np.float64), sums[has]

    def _ports(self, tensors: list[int]) -> dict[str, int]:
        """Name and shape of the tensors that cross a border."""
        return {"\t".join(self._words(self._blocks[tensor])): tensor for tensor in tensors}

    def _words(self, block: TraceBlock) -> tuple[str, str]:
        """What stands on a block: its name and one line more."""
        name = self._wording.title(block) if block.index else self.tree.record.model
        if block.role is BlockRole.SECTION or not block.index:
            return name, f"{len(block.operations):,} operations{'' if block.index else _around(self.tree.record)}"
        shape = self._wording.shape(block)
        if block.children:
            return name, f"{self._wording.class_name(block)} {shape}"
        return name, " · ".join(filter(None, (self._wording.path_below(block), shape)))

    def _key(self, block: TraceBlock) -> str:
        naming = self.tree.naming
        if block.children:
            return f"{block.path}@{block.index}"
        return naming.label(block.operations[0])


def _around(record: TraceRecord) -> str:
    """How many operations are not the model's own, in words: those of a loss, say."""
    if not any(call.class_name and not call.path for call in record.calls):
        return ""
    calls, roles = (field_of_all(record.operations, name) for name in ("call", "role"))
    around = sum(call == 0 and role is Role.OPERATION for call, role in zip(calls, roles, strict=True))
    return f", {around:,} of them outside the model" if around else ""
