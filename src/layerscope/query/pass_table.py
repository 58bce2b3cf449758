"""The operations of a pass as a table."""

from __future__ import annotations

import pyarrow as pa

from layerscope.operations import PassRecord
from layerscope.query.layers import Naming
from layerscope.query.table import Table


def pass_table(record: PassRecord, naming: Naming) -> Table:
    """One row per operation: names, place in the graph, shapes, costs."""
    operations = record.operations
    to_input, to_output = distances(record)
    columns = {
        "label": [naming.label(op.index) for op in operations],
        "layer": [naming.labels[naming.layer[op.index]] for op in operations],
        "pass": list(naming.number),
        "passes": [len(naming.members[layer]) for layer in naming.layer],
        "role": [op.role.value for op in operations],
        "function": [op.function for op in operations],
        "module": [record.calls[op.call].path for op in operations],
        "module_call": [record.calls[op.call].number for op in operations],
        "parents": [[naming.label(p.operation) for p in op.parents] for op in operations],
        "parent_arguments": [[p.argument for p in op.parents] for op in operations],
        "parameters": [list(op.parameters) for op in operations],
        "buffers": [list(op.buffers) for op in operations],
        "shape": [list(op.shape) for op in operations],
        "dtype": [op.dtype for op in operations],
        "device": [op.device for op in operations],
        "size_bytes": [op.size_bytes for op in operations],
        "flops": [op.flops for op in operations],
        "elapsed_s": [op.elapsed_s for op in operations],
        "grad_fn": [op.grad_fn for op in operations],
        "arguments": [", ".join(f"{name}={text}" for name, text in op.arguments.items()) for op in operations],
        "in_place": [op.in_place for op in operations],
        "from_input": to_input,
        "to_output": to_output,
        "file": [op.frames[0].file if op.frames else None for op in operations],
        "line": [op.frames[0].line if op.frames else None for op in operations],
    }
    return Table(pa.table(columns))


def distances(record: PassRecord) -> tuple[list[int | None], list[int | None]]:
    """The fewest operations between each operation and an input, and an output; None where none can be reached."""
    count = len(record.operations)
    from_input: list[int | None] = [None] * count
    to_output: list[int | None] = [None] * count
    for op in record.operations:
        near = [d + 1 for p in op.parents if (d := from_input[p.operation]) is not None]
        from_input[op.index] = 0 if op.role.value == "input" else min(near, default=None)
    for op in reversed(record.operations):
        if op.role.value == "output":
            to_output[op.index] = 0
        here = to_output[op.index]
        for p in op.parents if here is not None else ():
            known = to_output[p.operation]
            to_output[p.operation] = here + 1 if known is None else min(known, here + 1)  # type: ignore[operator]
    return from_input, to_output
