"""The modules of a model, with shapes and costs, from one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow as pa

from layerscope.operations import PassRecord
from layerscope.query.table import Table


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module: what it is, what it gave in its first call, what all its calls cost."""

    path: str
    class_name: str
    depth: int
    calls: int
    output_shapes: tuple[tuple[int, ...], ...]
    output_bytes: int
    parameters: int  # elements of its own and its children's
    trainable: int
    flops: int  # of all its calls, children included
    elapsed_s: float


def module_rows(record: PassRecord) -> list[ModuleRow]:
    """A row for every module, parents before their children."""
    flops = _flops(record)
    rows = []
    for path, class_name in _ordered(record):
        calls = [index for index, call in enumerate(record.calls) if call.path == path and call.number]
        first = record.calls[calls[0]].outputs if calls else ()
        owned = [p for p in record.parameters if not path or p.name.startswith(f"{path}.")]
        rows.append(
            ModuleRow(
                path=path,
                class_name=class_name,
                depth=path.count(".") + 1 if path else 0,
                calls=len(calls),
                output_shapes=tuple(record.operations[output].shape for output in first),
                output_bytes=sum(record.operations[output].size_bytes for output in first),
                parameters=sum(math.prod(p.shape) for p in owned),
                trainable=sum(math.prod(p.shape) for p in owned if p.trainable),
                flops=sum(flops[index] for index in calls),
                elapsed_s=sum(record.calls[index].elapsed_s for index in calls),
            )
        )
    return rows


def _ordered(record: PassRecord) -> list[tuple[str, str]]:
    """Modules as a tree reads: each followed by its children, in the order of registration."""
    position = {path: index for index, (path, _) in enumerate(record.modules)}

    def key(path: str) -> tuple[int, ...]:
        parts = path.split(".") if path else []
        prefixes = [".".join(parts[: n + 1]) for n in range(len(parts))]
        return tuple(position.get(prefix, 0) for prefix in prefixes)

    return sorted(record.modules, key=lambda item: key(item[0]))


def _flops(record: PassRecord) -> list[int]:
    """Operations of each module call, those of calls inside it included."""
    total = [0] * len(record.calls)
    for operation in record.operations:
        total[operation.call] += operation.flops or 0
    for index in range(len(record.calls) - 1, 0, -1):  # a call comes after the one it happened in
        parent = record.calls[index].parent
        if parent is not None:
            total[parent] += total[index]
    return total


def summary_table(rows: list[ModuleRow]) -> Table:
    """The rows as a table."""
    names = (
        "path",
        "class_name",
        "depth",
        "calls",
        "output_shapes",
        "output_bytes",
        "parameters",
        "trainable",
        "flops",
        "elapsed_s",
    )
    return Table(pa.table({name: [_plain(getattr(row, name)) for row in rows] for name in names}))


def _plain(value: object) -> object:
    return [list(shape) for shape in value] if isinstance(value, tuple) else value
