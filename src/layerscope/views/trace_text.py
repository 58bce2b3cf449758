"""A pass, and one operation of it, as text for the terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Sequence

from layerscope.graph.layers import Naming, Recurrence, Relations, flow
from layerscope.model.text import quantity, shape_text
from layerscope.model.trace_record import CodeFrame, Operation, Role, TraceRecord
from layerscope.query.trace_tables import ModuleRow


def overview_text(record: TraceRecord, naming: Naming, relations: Relations, saved: Collection[int]) -> str:
    """The pass in one screen: structure, sizes, time, the tree of modules, the operations."""
    operations = record.operations
    computed = sum(op.size_bytes for op in operations)
    kept = sum(operations[index].size_bytes for index in saved)
    elements = sum(math.prod(parameter.shape) for parameter in record.parameters)
    users = sum(bool(op.parameters) for op in operations)
    shape, modules = structure(record, naming, relations), max(len(record.modules) - 1, 0)
    lines = [
        f"Trace of {record.model}{' (ended by an error)' if record.failure else ''}:",
        f"\tModel structure: {shape}; {modules} modules in total.",
        f"\t{len(operations)} tensors ({quantity(computed, 'B')}) computed; "
        f"{len(saved)} tensors ({quantity(kept, 'B')}) saved.",
        f"\t{users} operations use {len(record.parameters)} parameters "
        f"({elements:,} elements; {quantity(sum(p.size_bytes for p in record.parameters), 'B')}).",
        f"\tRandom seed: {'not set' if record.seed is None else record.seed}",
        f"\tTime elapsed: {record.elapsed_s:.3f}s",
    ]
    if record.failure:
        lines.append(f"\tFailure: {record.failure}")
    if record.stale:
        lines.append(f"\tNot proven current: {', '.join(naming.label(index) for index in sorted(record.stale))}")
    lines += ["\tModule hierarchy:", *(f"\t\t{line}" for line in hierarchy(record))]
    lines += ["\tOperations:", *(f"\t\t{op.index}: {naming.label(op.index)}" for op in operations)]
    return "\n".join(lines)


def structure(record: TraceRecord, naming: Naming, relations: Relations) -> str:
    """The shape of the graph in a phrase; recurrent if a layer is computed from an earlier pass of itself."""
    loops = sum(len(members) > 1 for members in naming.members)
    branches = sum(map(relations.is_branch, range(len(relations.children))))
    kind = f"purely {Recurrence.FEEDFORWARD.value}"
    if loops:
        recurrence = flow(record.operations, naming.layer, naming.members)
        kind = f"{recurrence.value}, {loops} {'layer' if loops == 1 else 'layers'} with several passes"
    return f"{kind}, {f'{branches} branchings' if branches else 'without branching'}"


def hierarchy(record: TraceRecord) -> list[str]:
    """The tree of modules: each with its children in one paragraph, those with children of their own below."""
    children: dict[str, list[str]] = {}
    for path, _ in record.modules:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    return _branch("", children)


def _branch(path: str, children: dict[str, list[str]]) -> list[str]:
    lines: list[str] = []
    leaves: list[str] = []
    for child in children.get(path, []):
        if child in children:
            lines += _wrapped(leaves)
            leaves = []
            lines += [f"{child}:", *(f"    {line}" for line in _branch(child, children))]
        else:
            leaves.append(child)
    return lines + _wrapped(leaves)


def _wrapped(names: Sequence[str]) -> list[str]:
    return textwrap.wrap(", ".join(names), width=100, break_long_words=False, break_on_hyphens=False) if names else []


def operation_text(
    record: TraceRecord,
    naming: Naming,
    relations: Relations,
    index: int,
    sample: str | None,
    stack: Sequence[CodeFrame],
) -> str:
    """Everything about one operation."""
    op = record.operations[index]
    layer = naming.layer[index]
    passes = len(naming.members[layer])
    number = f" (pass {naming.number[index]}/{passes})" if passes > 1 else ""
    shape = f"shape={op.shape}, dtype={op.dtype}, device={op.device}, size={quantity(op.size_bytes, 'B')}"
    lines = [
        f"Operation {naming.labels[layer]}{number}, {index + 1}/{len(record.operations)}:",
        f"\tOutput tensor: {shape}",
    ]
    lines += [f"\t\t{line}" for line in (sample or "(value not kept)").splitlines()]
    if op.parameters:
        lines.append(f"\tParameters: {parameters_text(record, op)}")
    if op.buffers:
        lines.append(f"\tBuffers: {', '.join(op.buffers)}")
    if op.written:
        lines.append(f"\tWrites: {', '.join(op.written)}")
    lines += _relations(naming, relations, op)
    lines.append(f"\tFunction: {op.function}{f' (grad_fn={op.grad_fn})' if op.grad_fn else ''}")
    if op.arguments:
        lines.append(f"\tArguments: {', '.join(f'{name}={text}' for name, text in op.arguments.items())}")
    return "\n".join([*lines, *_place(record, op), *_circumstances(op), *_code(stack)])


def parameters_text(record: TraceRecord, op: Operation) -> str:
    """The parameters an operation used."""
    used = [parameter for parameter in record.parameters if parameter.name in op.parameters]
    named = ", ".join(f"{parameter.name} {parameter.shape}" for parameter in used)
    elements = sum(math.prod(parameter.shape) for parameter in used)
    return f"{named}; {elements:,} elements ({quantity(sum(parameter.size_bytes for parameter in used), 'B')})"


def _relations(naming: Naming, relations: Relations, op: Operation) -> list[str]:
    parents = [f"{naming.label(parent.operation)} (argument {parent.argument})" for parent in op.parents]
    children = [
        f"{naming.label(child)} (argument {', '.join(arguments)})"
        for child, arguments in relations.children[op.index].items()
    ]
    merge = " (a merge)" if relations.is_merge(op.index) else ""
    branch = " (a branch)" if relations.is_branch(op.index) else ""
    from_input, to_output = relations.from_input[op.index], relations.to_output[op.index]
    return [
        f"\tParents{merge}: {', '.join(parents) or 'none'}",
        f"\tChildren{branch}: {', '.join(children) or 'none'}",
        f"\tDistance: {'no way' if from_input is None else from_input} from the input, "
        f"{'no way' if to_output is None else to_output} to the output",
    ]


def _place(record: TraceRecord, op: Operation) -> list[str]:
    call = record.calls[op.call]
    outputs = [c.path for c in record.calls if op.index in c.outputs and c.path]
    inside = f"\tComputed inside module: {call.path or '(model)'}, call {call.number}"
    lines = [inside if call.number else "\tComputed outside of any module"]
    if outputs:
        bottom = call.path if call.path in outputs else outputs[-1]
        lines += [f"\tOutput of modules: {', '.join(outputs)}", f"\tOutput of bottom-level module: {bottom}"]
    if op.role is not Role.OPERATION:
        lines.append(f"\tRole: {op.role.value}")
    return lines


def _circumstances(op: Operation) -> list[str]:
    lines = [f"\tTime elapsed: {op.elapsed_s:.3E}s"]
    if op.flops:
        lines.append(f"\tFLOPs: {op.flops:,}")
    facts = {
        "in place": op.in_place,
        "may draw random numbers": op.is_random,
        "without gradients": not op.grad_mode,
        f"autocast to {op.autocast}": op.autocast is not None,
    }
    said = [fact for fact, holds in facts.items() if holds]
    return [*lines, f"\tRan: {', '.join(said)}"] if said else lines


def _code(stack: Sequence[CodeFrame]) -> list[str]:
    """The innermost line, and the user's with the code around it: the innermost that is not in torch."""
    if not stack:
        return []
    inner = stack[0]
    lines = [f"\tCalled at: {inner.file}:{inner.line} in {inner.function}"]
    users = next((frame for frame in stack if "/torch/" not in frame.file.replace("\\", "/")), inner)
    first, *code = str(users).splitlines()
    if users != inner:
        lines.append(f"\tCalled from: {first}")
    return lines + [f"\t\t{line}" for line in code]


HEADS = ("Module", "Output shape", "Parameters", "FLOPs", "Calls")


def summary_text(rows: list[ModuleRow]) -> str:
    """The modules as an indented table, and the totals of the whole model."""
    cells = [HEADS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADS))]
    lines = ["  ".join(_aligned(line, widths)) for line in cells]
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([lines[0], rule, *lines[1:], rule, *_totals(rows)])


def _cells(row: ModuleRow) -> tuple[str, ...]:
    name = row.path.rpartition(".")[2]
    title = f"{'  ' * row.depth}{name}: {row.class_name}" if name else row.class_name
    shapes = ", ".join(map(shape_text, row.output_shapes))
    shapes = shapes if len(shapes) <= 48 else f"{shapes[:47]}…"
    counts = (f"{number:,}" if number else "–" for number in (row.parameters, row.flops))
    return (title, shapes or "–", *counts, str(row.calls) if row.calls else "not called")


def _aligned(line: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        cell.ljust(w) if column < 2 else cell.rjust(w)
        for column, (cell, w) in enumerate(zip(line, widths, strict=True))
    ]


def _totals(rows: list[ModuleRow]) -> list[str]:
    if not rows:
        return ["No module was called."]
    whole = rows[0]
    outputs = sum(row.output_bytes for row in rows if not _has_children(row, rows))
    return [
        f"Parameters: {whole.parameters:,} ({whole.trainable:,} trainable)",
        f"FLOPs of one pass: {whole.flops:,}",
        f"Outputs of the innermost modules: {quantity(outputs, 'B')}",
    ]


def _has_children(row: ModuleRow, rows: list[ModuleRow]) -> bool:
    prefix = f"{row.path}." if row.path else ""
    return any(other is not row and other.path.startswith(prefix) for other in rows)
