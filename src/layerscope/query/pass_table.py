"""The operations of a pass as a table."""

from __future__ import annotations

import pyarrow as pa

from layerscope.operations import PassRecord
from layerscope.query.layers import Naming
from layerscope.query.relations import Relations
from layerscope.query.table import Table


def pass_table(record: PassRecord, naming: Naming, relations: Relations) -> Table:
    """One row per operation: names, place in the graph, shapes, costs, circumstances."""
    operations = record.operations
    from_input, to_output = relations.from_input, relations.to_output
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
        "children": [[naming.label(child) for child in children] for children in relations.children],
        "child_arguments": [list(children.values()) for children in relations.children],
        "is_branch": [relations.is_branch(op.index) for op in operations],
        "is_merge": [relations.is_merge(op.index) for op in operations],
        "parameters": [list(op.parameters) for op in operations],
        "buffers": [list(op.buffers) for op in operations],
        "written": [list(op.written) for op in operations],
        "shape": [list(op.shape) for op in operations],
        "dtype": [op.dtype for op in operations],
        "device": [op.device for op in operations],
        "size_bytes": [op.size_bytes for op in operations],
        "flops": [op.flops for op in operations],
        "elapsed_s": [op.elapsed_s for op in operations],
        "grad_fn": [op.grad_fn for op in operations],
        "arguments": [", ".join(f"{name}={text}" for name, text in op.arguments.items()) for op in operations],
        "in_place": [op.in_place for op in operations],
        "is_random": [op.is_random for op in operations],
        "grad_mode": [op.grad_mode for op in operations],
        "autocast": [op.autocast for op in operations],
        "from_input": [distance and distance.shortest for distance in from_input],
        "from_input_longest": [distance and distance.longest for distance in from_input],
        "to_output": [distance and distance.shortest for distance in to_output],
        "to_output_longest": [distance and distance.longest for distance in to_output],
        "file": [op.frames[0].file if op.frames else None for op in operations],
        "line": [op.frames[0].line if op.frames else None for op in operations],
    }
    return Table(pa.table(columns))
