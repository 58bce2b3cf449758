"""The words on the graph of a pass: titles, lines and tooltips of its blocks."""

from __future__ import annotations

from collections.abc import Iterable

from layerscope.graph.blocks import BlockRole
from layerscope.graph.collapse import Drawable
from layerscope.graph.trace_blocks import TraceBlock, passes_text
from layerscope.model.text import quantity, shape_text
from layerscope.model.trace_record import Operation


class Wording:
    """Texts of the blocks of one picture."""

    def __init__(self, drawable: Drawable) -> None:
        self._drawable = drawable
        self._blocks = drawable.tree.blocks
        self._record, self._naming = drawable.tree.record, drawable.tree.naming
        self._parameters = {parameter.name: parameter for parameter in self._record.parameters}

    def picture_title(self, focus: str | None) -> str:
        """The model, or the module that is looked at."""
        return self._record.model if focus is None else f"{self._record.model} · {focus}"

    def picture_detail(self, nodes: int) -> str:
        """How much is seen of how much."""
        count = len(self._blocks[self._drawable.root].operations)
        closed = f", drawn as {nodes} nodes" if nodes < count else ""
        return f"{count:,} operations{closed}"

    def title(self, block: TraceBlock) -> str:
        """What the block is called: its label, or its path below the group it is drawn in."""
        if block.role is BlockRole.SECTION:
            return f"operations {block.operations[0]}–{block.operations[-1]}"
        if block.children:
            return self._short_path(block) + self._times(block)
        return self._label(block) + self._times(block)

    def detail(self, block: TraceBlock) -> str:
        """The class of a module."""
        return "" if block.role is BlockRole.SECTION or not block.calls else self._class_name(block)

    def lines(self, block: TraceBlock) -> tuple[str, ...]:
        """What stands below the title of a node."""
        last = self._record.operations[block.operations[-1]]
        if block.role is BlockRole.SECTION:
            return (f"{len(block.operations):,} operations",)
        if block.children:
            return (self._class_name(block), f"{len(block.operations):,} operations", shape_text(last.shape))
        if block.role in (BlockRole.INPUT, BlockRole.OUTPUT):
            border = "from outside" if block.role is BlockRole.INPUT else "to outside"
            return (
                (shape_text(last.shape),) if last.role.value == block.role.value else (shape_text(last.shape), border)
            )
        shapes = ", ".join(self._parameter_shapes(last))
        found = (self.path_below(block), shape_text(last.shape), f"params {shapes}" if shapes else "")
        return tuple(line for line in found if line)

    def tooltip(self, block: TraceBlock) -> str:
        """Everything there is to say in a few lines."""
        last = self._record.operations[block.operations[-1]]
        elapsed = sum(op.elapsed_s for op in self._leads(block.operations))
        if block.children:
            names = {name for index in block.operations for name in self._record.operations[index].parameters}
            said = [block.path or self.title(block), self.detail(block), f"{len(block.operations):,} operations"]
            said.append(f"{self._elements(names):,} parameter elements" if names else "")
        else:
            said = [self._label(block), f"{last.function} in {block.path}" if block.path else last.function]
            said.append(", ".join(last.parameters))
        said += [
            f"{shape_text(last.shape)} {last.dtype} on {last.device}",
            f"{block.passes} passes" if block.passes > 1 else "",
        ]
        said.append(quantity(elapsed, "s") if elapsed else "")
        return "\n".join(line for line in said if line)

    def _label(self, block: TraceBlock) -> str:
        first = block.operations[0]
        layer = self._naming.layer[first]
        everywhere = len(self._naming.members[layer])
        if everywhere == len(block.operations) or block.parent < 0:
            return self._naming.labels[layer]
        numbers = [self._naming.number[operation] for operation in block.operations]
        return f"{self._naming.labels[layer]}:{passes_text(numbers)}"

    def _times(self, block: TraceBlock) -> str:
        if block.children:
            calls = [self._record.calls[call].number for call in block.calls]
            return f" ×{len(calls)}" if len(calls) > 1 else f"#{calls[0]}" if calls[0] > 1 else ""
        return f" ×{block.passes}" if block.passes > 1 else ""

    def _short_path(self, block: TraceBlock) -> str:
        around = self._blocks[block.parent].path if block.parent >= 0 else ""
        return block.path.removeprefix(f"{around}.") if around else block.path or self._class_name(block)

    def path_below(self, block: TraceBlock) -> str:
        """Of an operation that is drawn instead of its module, which module that is."""
        around = self._blocks[block.parent].path if block.parent >= 0 else ""
        return "" if block.path == around else f"@ {self._short_path(block)}"

    def _class_name(self, block: TraceBlock) -> str:
        return self._record.calls[block.calls[0]].class_name

    def _parameter_shapes(self, operation: Operation) -> Iterable[str]:
        for name in operation.parameters:
            if name in self._parameters:
                yield shape_text(self._parameters[name].shape)

    def _elements(self, names: Iterable[str]) -> int:
        total = 0
        for name in names:
            size = 1
            for length in self._parameters[name].shape if name in self._parameters else (0,):
                size *= length
            total += size
        return total

    def _leads(self, operations: Iterable[int]) -> Iterable[Operation]:
        """One operation of each function call."""
        found = (self._record.operations[index] for index in operations)
        return (operation for operation in found if operation.lead == operation.index)
