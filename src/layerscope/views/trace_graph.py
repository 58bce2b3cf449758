"""The graph of a trace as a view: operations in modules, with the order of every group that can be opened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from layerscope.graph.collapse import Drawable, Hops, readable
from layerscope.graph.module_order import NO_TENSOR, Ordered
from layerscope.graph.op_blocks import BlockRole, Nesting, OpBlock
from layerscope.graph.order import Ordering, flows_of, order
from layerscope.model.records import Floats
from layerscope.model.trace_record import Role, TraceRecord, field_of_all
from layerscope.views.draw.text_width import text_width
from layerscope.views.nested_graph import GroupOrder, group_order
from layerscope.views.trace_page import FIELDS, TraceGroups, TraceParts, TracePicture, amounts, shape_text
from layerscope.views.trace_text import size
from layerscope.views.wording import Wording

NAME_SIZE, DETAIL_SIZE, TITLE_SIZE = 12.0, 10.5, 11.0
HEIGHT, NARROWEST, WIDEST = 38, 76, 240
MARGIN, CHEVRON = 9, 16
SHORTEST_TITLE = 150
SENT_WHOLE = 4000  # blocks of a graph that is sent with the order of all its groups, and with all facts


class TraceGraph:
    """The graph of one trace, kept while it is looked at. Its parts are the blocks of the nesting.

    Of a large one the page gets the modules at first, and what is in a group when that is opened.
    """

    def __init__(self, nesting: Nesting) -> None:
        self.nesting = nesting
        self.hops = Hops(nesting)
        self._blocks = nesting.blocks
        self._groups = [block.index for block in nesting.blocks if block.children]
        self._is_small = len(self._blocks) <= SENT_WHOLE
        self._shapes = field_of_all(nesting.record.operations, "shape")
        self._wording = Wording(Drawable(nesting, 0, frozenset(), ()))
        self._known: dict[int, Ordering] = {}

    def view(self) -> TracePicture:
        """Everything that the page needs at first."""
        opened = sorted(readable(self.nesting, 0))
        sent = self._groups if self._is_small else opened
        return TracePicture(
            title=self.nesting.record.model,
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
        ordering = self._ordering(index)
        into = {
            (child, flow.tensor): self._inside(child, flow.tensor)
            for flow in ordering.flows
            for child in (*flow.targets, *flow.back)
        }
        out_of = {
            flow.tensor: self._inside(flow.source, flow.tensor) for flow in ordering.flows if flow.source is not None
        }
        inputs, outputs = (self._ports(ordering.ports(top=top)) for top in (True, False))
        return group_order(index, Ordered(ordering, into, out_of), inputs, outputs)

    def has_group(self, index: int) -> bool:
        """Whether the number is that of a block with something inside."""
        return 0 <= index < len(self._blocks) and bool(self._blocks[index].children)

    def numbers(self, field: str) -> tuple[Floats, Floats]:
        """A field of operations, such as their time, added up for each block that has it."""
        values, count = amounts(self.nesting.record.operations, field), len(self._blocks)
        known = ~np.isnan(values)
        leaf = np.array(self.nesting.leaf, np.int64)[known]
        sums: Floats = np.bincount(leaf, values[known], count).astype(np.float64)
        counts = np.bincount(leaf, minlength=count)
        for index in sorted(self._groups, key=lambda index: -len(self.nesting.chain(index))):  # innermost first
            children = self._blocks[index].children
            sums[index], counts[index] = sums[children].sum(), counts[children].sum()
        has = np.flatnonzero(counts)
        return has.astype(np.float64), sums[has]

    def _ordering(self, index: int) -> Ordering:
        if index not in self._known:
            children = self._blocks[index].children
            pinned = {child for child in children if self._blocks[child].role is BlockRole.INPUT}
            flows = flows_of(self.hops.of(index))
            into = [(child, flow.tensor) for flow in flows for child in (*flow.targets, *flow.back)]
            entries = self._borders(into, top=True)
            leaving = [(flow.source, flow.tensor) for flow in flows if flow.source is not None]
            exits = self._borders(leaving, top=False)
            ordered = sorted(children, key=lambda child: child not in pinned)
            self._known[index] = order(ordered, flows, pinned, entries, exits)
        return self._known[index]

    def _borders(self, crossing: list[tuple[int, int]], *, top: bool) -> dict[tuple[int, int], float]:
        """Where on the borders of groups tensors cross them; the only one is in the middle, and needs no looking."""
        tensors: dict[int, set[int]] = defaultdict(set)
        for child, tensor in crossing:
            tensors[child].add(tensor)
        found: dict[tuple[int, int], float] = {}
        for child, several in tensors.items():
            if len(several) > 1 and self._blocks[child].children:
                ports = self._ordering(child).ports(top=top)
                found.update({(child, tensor): (at + 0.5) / len(ports) - 0.5 for at, tensor in enumerate(ports)})
        return found

    def _inside(self, child: int | None, tensor: int) -> int:
        return tensor if child is not None and self._blocks[child].children else NO_TENSOR

    def _ports(self, tensors: list[int]) -> dict[str, int]:
        """Name and shape of the tensors that cross a border."""
        return {"\t".join(self._words(self._blocks[tensor])): tensor for tensor in tensors}

    def _words(self, block: OpBlock) -> tuple[str, str]:
        """What stands on a block: its name and one line more."""
        name = self._wording.title(block) if block.index else self.nesting.record.model
        if block.role is BlockRole.SECTION or not block.index:
            return name, f"{len(block.operations):,} operations{'' if block.index else _around(self.nesting.record)}"
        shape = self.shape(block)
        if block.children:
            return name, f"{self._wording.detail(block)} {shape}"
        return name, " · ".join(filter(None, (self._wording.path_below(block), shape)))

    def shape(self, block: OpBlock) -> str:
        """The shape of what a block gives, the first of several tensors."""
        given = self._given(block)
        more = f" +{len(given) - 1}" if len(given) > 1 else ""
        return shape_text(self._shapes[given[0]]) + more if given else ""

    def _given(self, block: OpBlock) -> Sequence[int]:
        """The operations whose tensors a block gives: of a module what its last call returned."""
        returned = self.nesting.record.calls[block.calls[-1]].outputs if block.calls else ()
        return returned or block.operations[-1:]

    def _key(self, block: OpBlock) -> str:
        naming = self.nesting.naming
        if block.children:
            return f"{block.path}@{block.index}"
        return naming.label(block.operations[0])

    @cached_property
    def _costs(self) -> list[list[float]]:
        """Time, FLOPs and bytes of every operation."""
        return [np.nan_to_num(amounts(self.nesting.record.operations, field)).tolist() for field in FIELDS]

    def _facts(self, block: OpBlock) -> str:
        """Lines of a name, a tab and a text, for the tooltip."""
        record, first = self.nesting.record, self.nesting.record.operations[block.operations[0]]
        elapsed, flops, held = (sum(costs[at] for at in block.operations) for costs in self._costs)
        found = {
            "module" if block.children else "function": block.path if block.children else first.function,
            "in": "" if block.children else _module(record, block),
            "class": self._wording.detail(block) if block.children else "",
            "operations": f"{len(block.operations):,}" if block.children else "",
            "gives": f"{self.shape(block)} {record.operations[self._given(block)[0]].dtype}",
            "parameters": ", ".join(first.parameters) if not block.children else "",
            "passes": str(block.passes) if block.index and block.passes > 1 else "",
            "time": (f"{elapsed * 1e3:.3g} ms" if elapsed < 1 else f"{elapsed:,.2f} s") if elapsed else "",
            "FLOPs": f"{flops:,.0f}" if flops else "",
            "memory": size(held) + (", all results together" if block.children else ""),
        }
        return "\n".join(f"{name}\t{text}" for name, text in found.items() if text)


def _module(record: TraceRecord, block: OpBlock) -> str:
    return record.calls[record.operations[block.operations[0]].call].path


def _width(name: str, detail: str, block: OpBlock) -> int:
    title = text_width(name, NAME_SIZE, bold=True) + (CHEVRON if block.children else 0)
    return round(min(max(title, text_width(detail, DETAIL_SIZE), NARROWEST - 2 * MARGIN), WIDEST) + 2 * MARGIN)


def _around(record: TraceRecord) -> str:
    """How many operations are not the model's own, in words: those of a loss, say."""
    if not any(call.class_name and not call.path for call in record.calls):
        return ""
    calls, roles = (field_of_all(record.operations, name) for name in ("call", "role"))
    around = sum(call == 0 and role is Role.OPERATION for call, role in zip(calls, roles, strict=True))
    return f", {around:,} of them around the model" if around else ""
