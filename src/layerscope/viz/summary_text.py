"""The summary of a model as text: one line per module, totals below."""

from __future__ import annotations

from layerscope.query.model_summary import ModuleRow
from layerscope.viz.pass_text import size

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
    shapes = ", ".join("×".join(map(str, shape)) or "scalar" for shape in row.output_shapes)
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
        f"Outputs of the innermost modules: {size(outputs)}",
    ]


def _has_children(row: ModuleRow, rows: list[ModuleRow]) -> bool:
    prefix = f"{row.path}." if row.path else ""
    return any(other is not row and other.path.startswith(prefix) for other in rows)
