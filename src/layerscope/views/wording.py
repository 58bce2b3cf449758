"""The words on the graph of a trace: titles, lines and facts of its blocks."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from layerscope.graph.blocks import BlockRole
from layerscope.graph.trace_blocks import TraceBlock, TraceBlocks, passes_text
from layerscope.model.records import Floats, call_site
from layerscope.model.text import quantity, shape_text
from layerscope.model.trace_record import Operation, Role, TraceRecord, field_of_all

FIELDS = ("elapsed_s", "flops", "size_bytes")


def amounts(operations: Sequence[Operation], field: str) -> Floats:
    """A field of every operation; NaN of those that do not count, so that a sum is right."""
    values = np.array(field_of_all(operations, field), np.float64)  # None becomes NaN
    if field in ("elapsed_s", "flops"):  # of what was computed; a call with several results counts once
        leads = np.array(field_of_all(operations, "lead")) == np.arange(len(values))
        computed = np.array([role is Role.OPERATION for role in field_of_all(operations, "role")], np.bool_)
        values[~(leads & computed)] = np.nan
    return values


def elements_of(record: TraceRecord, names: Collection[str]) -> int:
    """Elements of the parameters of these names."""
    return sum(math.prod(parameter.shape) for parameter in record.parameters if parameter.name in names)


class TraceWording:
    """Texts of the blocks of one trace."""

    def __init__(self, tree: TraceBlocks) -> None:
        self._blocks, self._record, self._naming = tree.blocks, tree.record, tree.naming
        self._shapes = field_of_all(tree.record.operations, "shape")
        self._known = {parameter.name: parameter.shape for parameter in tree.record.parameters}

    def title(self, block: TraceBlock) -> str:
        """What the block is called: its label, or its path below the group it is drawn in."""
        if block.role is BlockRole.SECTION:
            return f"operations {block.operations[0]}–{block.operations[-1]}"
        if not block.children:
            return self._label(block) + (f" ×{block.passes}" if block.passes > 1 else "")
        numbers = [self._record.calls[call].number for call in block.calls]
        path = self._short_path(block)
        return f"{path} ×{len(numbers)}" if len(numbers) > 1 else call_site(path, max(numbers[0], 1))

    def class_name(self, block: TraceBlock) -> str:
        """The class of a module."""
        is_module = block.role is not BlockRole.SECTION and block.calls
        return self._record.calls[block.calls[0]].class_name if is_module else ""

    def lines(self, block: TraceBlock) -> tuple[str, ...]:
        """What stands below the title of a node."""
        count = f"{len(block.operations):,} operations"
        if block.role is BlockRole.SECTION:
            return (count,)
        if block.children:
            return (self.class_name(block), count, self.shape(block))
        last = self._record.operations[block.operations[-1]]
        if block.role in (BlockRole.INPUT, BlockRole.OUTPUT):
            border = "from outside" if block.role is BlockRole.INPUT else "to outside"
            return (self.shape(block),) if last.role.value == block.role.value else (self.shape(block), border)
        shapes = ", ".join(shape_text(self._known[name]) for name in last.parameters if name in self._known)
        lines = (self.path_below(block), self.shape(block), f"params {shapes}" if shapes else "")
        return tuple(line for line in lines if line)

    def path_below(self, block: TraceBlock) -> str:
        """Of an operation that is drawn instead of its module, which module that is."""
        around = self._blocks[block.parent].path if block.parent >= 0 else ""
        return "" if block.path == around else f"@ {self._short_path(block)}"

    def shape(self, block: TraceBlock) -> str:
        """The shape of what a block returns, the first of several tensors."""
        returned = self.returned(block)
        more = f" +{len(returned) - 1}" if len(returned) > 1 else ""
        return shape_text(self._shapes[returned[0]]) + more if returned else ""

    def returned(self, block: TraceBlock) -> Sequence[int]:
        """The operations whose tensors a block returns: of a module those of its last call."""
        returned = self._record.calls[block.calls[-1]].outputs if block.calls and block.children else ()
        return returned or block.operations[-1:]

    def facts(self, block: TraceBlock) -> list[tuple[str, str]]:
        """Names and texts for the tooltip."""
        first = self._record.operations[block.operations[0]]
        returned = self._record.operations[self.returned(block)[0]]
        elapsed, flops, size = (sum(amount[at] for at in block.operations) for amount in self._amounts)
        if block.children:
            used = {name for at in block.operations for name in self._parameters[at]}
            elements = sum(math.prod(self._known[name]) for name in used if name in self._known)
            facts = {
                "module": block.path,
                "class": self.class_name(block),
                "operations": f"{len(block.operations):,}",
                "parameters": f"{elements:,} elements" if elements else "",
            }
        else:
            facts = {
                "function": first.function,
                "in": self._record.calls[first.call].path,
                "parameters": ", ".join(first.parameters),
            }
        facts |= {
            "returns": f"{self.shape(block)} {returned.dtype} on {returned.device}",
            "passes": str(block.passes) if block.index and block.passes > 1 else "",
            "time": quantity(elapsed, "s") if elapsed else "",
            "FLOPs": f"{flops:,.0f}" if flops else "",
            "memory": quantity(size, "B") + (", all results together" if block.children else ""),
        }
        return [(name, text) for name, text in facts.items() if text]

    @cached_property
    def _amounts(self) -> list[list[float]]:
        """Time, FLOPs and bytes of every operation."""
        return [np.nan_to_num(amounts(self._record.operations, field)).tolist() for field in FIELDS]

    @cached_property
    def _parameters(self) -> Sequence[Sequence[str]]:
        return field_of_all(self._record.operations, "parameters")

    def _label(self, block: TraceBlock) -> str:
        layer = self._naming.layer[block.operations[0]]
        everywhere = len(self._naming.members[layer])
        if everywhere == len(block.operations) or block.parent < 0:
            return self._naming.labels[layer]
        numbers = [self._naming.number[operation] for operation in block.operations]
        return f"{self._naming.labels[layer]}:{passes_text(numbers)}"

    def _short_path(self, block: TraceBlock) -> str:
        around = self._blocks[block.parent].path if block.parent >= 0 else ""
        return block.path.removeprefix(f"{around}.") if around else block.path or self.class_name(block)
