"""A trace at a glance: how much of everything there is, and which operations have the most of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from layerscope.graph.blocks import BlockRole
from layerscope.graph.collapse import Drawable, readable
from layerscope.graph.layers import Naming
from layerscope.graph.module_blocks import MODEL
from layerscope.graph.order import GroupOrders
from layerscope.graph.trace_blocks import TraceBlock, TraceBlocks, TraceFlows
from layerscope.model.records import Floats, call_site
from layerscope.model.text import quantity, shape_text
from layerscope.model.trace_record import Operation, Role, TraceRecord, field_of_all
from layerscope.views.draw.text_width import text_width
from layerscope.views.nested_graph import GroupOrder, group_order
from layerscope.views.wording import Wording

MOST_RANKED = 10
FIELDS = ("elapsed_s", "flops", "size_bytes")


@dataclass(frozen=True, slots=True)
class TraceRanking:
    """The operations with the most of a field, such as their time."""

    field: str
    total: float  # of all operations
    operations: tuple[OperationLink, ...]
    values: Floats


@dataclass(frozen=True, slots=True)
class TraceOverview:
    """What a trace is made of."""

    facts: tuple[Fact, ...]
    rankings: tuple[TraceRanking, ...]


def overview(record: TraceRecord, naming: Naming) -> TraceOverview:
    """A trace at a glance; of a field that nothing is known of there is no ranking."""
    rankings = [_ranking(record, naming, field) for field in FIELDS]
    flops = next(ranking.total for ranking in rankings if ranking.field == "flops")
    computed = next(ranking.total for ranking in rankings if ranking.field == "size_bytes")
    elements = sum(math.prod(parameter.shape) for parameter in record.parameters)
    calls = sum(bool(call.class_name) for call in record.calls)  # the first is what was traced, a module or not
    held = quantity(sum(parameter.size_bytes for parameter in record.parameters), "B")
    found = (
        ("Operations", f"{len(record.operations):,} in {calls:,} calls of modules"),
        ("Parameters", f"{elements:,} elements ({held})" if elements else ""),
        ("FLOPs", f"{flops:,.0f}" if flops else ""),
        ("Time", f"{quantity(record.elapsed_s, 's')}, tracing included"),
        ("Results", f"{quantity(computed, 'B')} in all, if none were freed"),
        ("Seed", "" if record.seed is None else str(record.seed)),
    )
    return TraceOverview(
        facts=tuple(Fact(name, text) for name, text in found if text),
        rankings=tuple(ranking for ranking in rankings if ranking.operations),
    )


def _ranking(record: TraceRecord, naming: Naming, field: str) -> TraceRanking:
    values = amounts(record.operations, field)
    most = np.argsort(-np.nan_to_num(values), kind="stable")[:MOST_RANKED]
    most = most[np.nan_to_num(values[most]) > 0]
    links = tuple(link(record, naming, at) for at in most.tolist())
    return TraceRanking(field, float(np.nansum(values)), links, values[most])


def amounts(operations: Sequence[Operation], field: str) -> Floats:
    """A field of every operation; NaN of those that do not count, so that a sum is right."""
    values = np.array(field_of_all(operations, field), np.float64)  # None becomes NaN
    if field in ("elapsed_s", "flops"):  # of what was computed; a call with several results counts once
        leads = np.array(field_of_all(operations, "lead")) == np.arange(len(values))
        computed = np.array([role is Role.OPERATION for role in field_of_all(operations, "role")], np.bool_)
        values[~(leads & computed)] = np.nan
    return values


def flops_of_calls(record: TraceRecord) -> dict[str, int]:
    """The FLOPs inside every call of a pass, by the site that it is when the model is watched."""
    of_calls = [0] * len(record.calls)
    counted = np.nan_to_num(amounts(record.operations, "flops")).astype(np.int64).tolist()
    for flops, inside in zip(counted, field_of_all(record.operations, "call"), strict=True):
        call: int | None = inside if flops else None
        while call is not None:
            of_calls[call] += flops
            call = record.calls[call].parent
    calls = zip(record.calls, of_calls, strict=True)
    return {call_site(call.path or MODEL, max(call.number, 1)): flops for call, flops in calls}


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


@dataclass(frozen=True, slots=True)
class OperationLink:
    """An operation that another one speaks of."""

    operation: int
    label: str
    module: str
    shape: str
    argument: str  # as which argument it was taken; "" where that is no question


@dataclass(frozen=True, slots=True)
class Fact:
    """Something known of an operation, in words."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class StackLine:
    """A line of the call stack, with the code around it where that was kept."""

    file: str
    line: int
    function: str
    first_line: int
    code: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperationView:
    """Everything known of one operation but its value."""

    operation: int
    operations: int  # in the whole trace
    label: str
    function: str
    role: str
    module: str
    module_class: str
    site: str  # of the module call, as in the histories of the run
    shape: tuple[int, ...]
    dtype: str
    facts: tuple[Fact, ...]
    arguments: tuple[Fact, ...]
    parents: tuple[OperationLink, ...]
    children: tuple[OperationLink, ...]
    passes: tuple[OperationLink, ...]  # of its layer
    stack: tuple[StackLine, ...]
    part: int  # of the graph
    around: tuple[Crumb, ...]  # parts that must be open for it to be seen
    has_value: bool
    has_gradient: bool
    is_stale: bool


@dataclass(frozen=True, slots=True)
class OperationList:
    """Operations that a search found."""

    found: int
    operations: tuple[OperationLink, ...]


def link(record: TraceRecord, naming: Naming, index: int, argument: str = "") -> OperationLink:
    """An operation in a list."""
    op = record.operations[index]
    return OperationLink(index, naming.label(index), record.calls[op.call].path, shape_text(op.shape), argument)


def facts(record: TraceRecord, op: Operation) -> tuple[Fact, ...]:
    """What there is to say of an operation, the most important first."""
    used = [parameter for parameter in record.parameters if parameter.name in op.parameters]
    elements = sum(math.prod(parameter.shape) for parameter in used)
    named = ", ".join(f"{parameter.name} {shape_text(parameter.shape)}" for parameter in used)
    found = [
        ("Time", quantity(op.elapsed_s, "s") if op.elapsed_s else ""),
        ("Memory", quantity(op.size_bytes, "B")),
        ("FLOPs", f"{op.flops:,}" if op.flops else ""),
        ("Parameters", f"{named} ({elements:,} elements)" if used else ""),
        ("Buffers", ", ".join(op.buffers)),
        ("Gradient by", op.grad_fn or ""),
        ("Device", op.device),
        ("Autocast", op.autocast or ""),
        ("In place", "yes" if op.in_place else ""),
        ("Random", "yes" if op.is_random else ""),
    ]
    return tuple(Fact(name, text) for name, text in found if text)


def crumbs(tree: TraceBlocks, block: int) -> tuple[Crumb, ...]:
    """The blocks around a block and itself, from the whole on."""

    def title(at: int) -> str:
        found = tree.blocks[at]
        if not at:
            return tree.record.model
        if found.role is BlockRole.SECTION:
            return f"operations {found.operations[0]}–{found.operations[-1]}"
        return found.path

    return tuple(Crumb(at, title(at)) for at in tree.chain(block))


NAME_SIZE, DETAIL_SIZE, TITLE_SIZE = 12.0, 10.5, 11.0
HEIGHT, NARROWEST, WIDEST = 38, 76, 240
MARGIN, CHEVRON = 9, 16
SHORTEST_TITLE = 150
SENT_WHOLE = 4000  # blocks of a graph that is sent with the order of all its groups, and with all facts


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
        self._shapes = field_of_all(tree.record.operations, "shape")
        self._wording = Wording(Drawable(tree, 0, frozenset(), ()))
        self._orders = GroupOrders(tree.blocks, self.flows)

    def view(self) -> TracePicture:
        """Everything that the page needs at first."""
        opened = sorted(readable(self.tree, 0))
        sent = self._groups if self._is_small else opened
        return TracePicture(
            title=self.tree.record.model,
            count=len(self._blocks),
            opened=tuple(opened),
            modules=self._parts(self._groups, told=self._is_small),
            inside=self.groups(sent),
        )

    def groups(self, of: Sequence[int]) -> TraceGroups:
        """What is in some groups, and its order; modules among it where they were sent without facts."""
        inside = [child for group in of for child in self._blocks[group].children]
        sent = [child for child in inside if not (self._is_small and self._blocks[child].children)]
        return TraceGroups(self._parts(sent, told=True), tuple(self.group(index) for index in of))

    def _parts(self, of: Sequence[int], *, told: bool) -> TraceParts:
        blocks = [self._blocks[index] for index in of]
        words = [self._words(block) for block in blocks]
        widths = [_width(name, detail, block) for (name, detail), block in zip(words, blocks, strict=True)]
        titles = [round(text_width(name, TITLE_SIZE, bold=True)) + 40 for name, _ in words]
        return TraceParts(
            parts=tuple(of),
            parents=tuple(block.parent for block in blocks),
            roles=tuple(block.role.value for block in blocks),
            names=tuple(name for name, _ in words),
            details=tuple(detail for _, detail in words),
            widths=tuple(widths),
            title_widths=tuple(min(SHORTEST_TITLE, title) for title in titles),
            sites=tuple(map(self._key, blocks)),
            facts=tuple(self._facts(block) if told or not block.index else "" for block in blocks),
            operations=tuple((self._given(block) if block.children else block.operations)[0] for block in blocks),
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
        shape = self.shape(block)
        if block.children:
            return name, f"{self._wording.detail(block)} {shape}"
        return name, " · ".join(filter(None, (self._wording.path_below(block), shape)))

    def shape(self, block: TraceBlock) -> str:
        """The shape of what a block gives, the first of several tensors."""
        given = self._given(block)
        more = f" +{len(given) - 1}" if len(given) > 1 else ""
        return shape_text(self._shapes[given[0]]) + more if given else ""

    def _given(self, block: TraceBlock) -> Sequence[int]:
        """The operations whose tensors a block gives: of a module what its last call returned."""
        returned = self.tree.record.calls[block.calls[-1]].outputs if block.calls else ()
        return returned or block.operations[-1:]

    def _key(self, block: TraceBlock) -> str:
        naming = self.tree.naming
        if block.children:
            return f"{block.path}@{block.index}"
        return naming.label(block.operations[0])

    @cached_property
    def _costs(self) -> list[list[float]]:
        """Time, FLOPs and bytes of every operation."""
        return [np.nan_to_num(amounts(self.tree.record.operations, field)).tolist() for field in FIELDS]

    def _facts(self, block: TraceBlock) -> str:
        """Lines of a name, a tab and a text, for the tooltip."""
        record, first = self.tree.record, self.tree.record.operations[block.operations[0]]
        elapsed, flops, held = (sum(costs[at] for at in block.operations) for costs in self._costs)
        found = {
            "module" if block.children else "function": block.path if block.children else first.function,
            "in": "" if block.children else _module(record, block),
            "class": self._wording.detail(block) if block.children else "",
            "operations": f"{len(block.operations):,}" if block.children else "",
            "gives": f"{self.shape(block)} {record.operations[self._given(block)[0]].dtype}",
            "parameters": ", ".join(first.parameters) if not block.children else "",
            "passes": str(block.passes) if block.index and block.passes > 1 else "",
            "time": quantity(elapsed, "s") if elapsed else "",
            "FLOPs": f"{flops:,.0f}" if flops else "",
            "memory": quantity(held, "B") + (", all results together" if block.children else ""),
        }
        return "\n".join(f"{name}\t{text}" for name, text in found.items() if text)


def _module(record: TraceRecord, block: TraceBlock) -> str:
    return record.calls[record.operations[block.operations[0]].call].path


def _width(name: str, detail: str, block: TraceBlock) -> int:
    title = text_width(name, NAME_SIZE, bold=True) + (CHEVRON if block.children else 0)
    return round(min(max(title, text_width(detail, DETAIL_SIZE), NARROWEST - 2 * MARGIN), WIDEST) + 2 * MARGIN)


def _around(record: TraceRecord) -> str:
    """How many operations are not the model's own, in words: those of a loss, say."""
    if not any(call.class_name and not call.path for call in record.calls):
        return ""
    calls, roles = (field_of_all(record.operations, name) for name in ("call", "role"))
    around = sum(call == 0 and role is Role.OPERATION for call, role in zip(calls, roles, strict=True))
    return f", {around:,} of them around the model" if around else ""
