"""Records → bytes, and the TypeScript types that say what the bytes mean.

A message is the length of its head (uint32, little endian), the head in JSON, zeros up to a multiple of 8, and the
columns, each starting at a multiple of 8. The head is `{"record": …, "columns": [[format, offset, length], …]}`;
where the record has a numpy array the head has `{"column": i}`. Formats are `f8` and `f4`, little endian, and `u1`. No
number that can be NaN or infinite travels as JSON.

`python -m layerscope.server.wire` writes the types into `web/src/wire.gen.ts`.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.server import custom_view
from layerscope.views import compare, findings, heatmap, run_overview, samples, tensors, trace_graph, trace_page
from layerscope.views.histogram import HistogramView
from layerscope.views.module_graph import PartNumbers
from layerscope.views.nested_graph import GroupOrders, NestedGraph
from layerscope.views.scales import AxisKind
from layerscope.views.values import ValueView

MEDIA_TYPE = "application/x-layerscope"
ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Change:
    """Sent over the live channel when a run has new rows, another status, appeared or vanished."""

    run: str
    status: str  # as in `RunEntry`, or "gone"
    revision: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused, as JSON, with a status of 4xx or 5xx."""

    problem: str


#: What is sent by itself; the records inside are reached from these.
MESSAGES: tuple[type, ...] = (
    run_overview.RunList,
    run_overview.SiteList,
    run_overview.Timeline,
    run_overview.MetricsView,
    run_overview.NotesView,
    run_overview.NetworkView,
    findings.FindingsView,
    HistogramView,
    heatmap.HeatMapView,
    heatmap.DifferenceView,
    compare.CompareView,
    compare.HistogramsView,
    compare.OverTimeView,
    NestedGraph,
    GroupOrders,
    PartNumbers,
    trace_page.TraceList,
    trace_page.TraceOverview,
    trace_page.OperationView,
    trace_page.OperationList,
    trace_graph.TracePicture,
    trace_graph.TraceNumbers,
    ValueView,
    tensors.TensorsView,
    samples.SamplesView,
    custom_view.CustomResult,
    custom_view.CustomSaved,
    Change,
    Problem,
)
_AS_IT_IS = (str, int)  # long columns of them are not worth a look at each
_FORMATS = {np.dtype(np.float64): "f8", np.dtype(np.float32): "f4", np.dtype(np.uint8): "u1"}
_ARRAYS = {np.dtype[np.float32]: "Float32Array", np.dtype[np.uint8]: "Uint8Array"}


def encode(record: object) -> bytes:
    """A record as bytes: JSON head and aligned columns."""
    columns: list[npt.NDArray[Any]] = []
    plain = _plain(record, columns)
    offset, places = 0, []
    for column in columns:
        places.append([_FORMATS[column.dtype], offset, column.size])
        offset += _padded(column.nbytes)
    text = json.dumps({"record": plain, "columns": places}, allow_nan=False, ensure_ascii=False)
    head = text.encode("utf-8", "backslashreplace")  # which escapes a lone surrogate as JSON does
    parts = [len(head).to_bytes(4, "little"), head, bytes(_padded(4 + len(head)) - 4 - len(head))]
    for column in columns:
        parts += [column.tobytes(), bytes(_padded(column.nbytes) - column.nbytes)]
    return b"".join(parts)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _plain(value: object, columns: list[npt.NDArray[Any]]) -> object:
    """JSON's own shapes; arrays become columns, those of longer whole numbers as float64: the page has no int64."""
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, np.ndarray):
        columns.append(value if value.dtype in _FORMATS else value.astype("<f8"))
        return {"column": len(columns) - 1}
    if is_dataclass(value):
        names: tuple[str, ...] = type(value).__match_args__  # type: ignore[union-attr]  # all fields: ten times as quick as asking for these
        return {name: _plain(getattr(value, name), columns) for name in names}
    if isinstance(value, tuple | list):
        if all(type(entry) in _AS_IT_IS for entry in value):
            return value
        return [_plain(entry, columns) for entry in value]
    return value.value if isinstance(value, Enum) else value


def records() -> list[type]:
    """All records that are sent, each after those inside it."""
    reached: dict[type, None] = {}

    def reach(hint: Any) -> None:  # Any: whatever an annotation can be
        for argument in typing.get_args(hint):
            reach(argument)
        if is_dataclass(hint) and isinstance(hint, type) and hint not in reached:
            for inner in typing.get_type_hints(hint).values():
                reach(inner)
            reached[hint] = None

    for message in MESSAGES:
        reach(message)
    return list(reached)


def typescript() -> str:
    """The TypeScript types of all records."""
    axes = " | ".join(f'"{kind.value}"' for kind in AxisKind)
    parts = [
        "// Generated from the Python records by `python -m layerscope.server.wire`. Do not edit.",
        f"export type AxisKind = {axes};",
        *(_interface(record) for record in records()),
    ]
    return "\n\n".join(parts) + "\n"


def _interface(record: type) -> str:
    hints = typing.get_type_hints(record)
    first_line = (record.__doc__ or "").strip().splitlines()[0]
    lines = [f"  readonly {field.name}: {_type_name(hints[field.name])};" for field in fields(record)]
    return "\n".join([f"/** {first_line} */", f"export interface {record.__name__} {{", *lines, "}"])


def _type_name(hint: Any) -> str:  # Any: whatever an annotation can be
    names = {str: "string", int: "number", float: "number", bool: "boolean", types.NoneType: "null"}
    if hint in names:
        return names[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is np.ndarray:
        return _ARRAYS.get(arguments[1], "Float64Array")
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"readonly {_type_name(arguments[0])}[]"
    if origin is types.UnionType:
        return " | ".join(_type_name(argument) for argument in arguments)
    if isinstance(hint, type) and (is_dataclass(hint) or hint is AxisKind):
        return str(hint.__name__)
    raise TypeError(f"{hint} has no type on the wire. Use numbers, text, arrays, tuples of one type, or records.")


def _write(path: Path) -> None:
    path.write_text(typescript())


if __name__ == "__main__":
    _write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[3] / "web" / "src" / "wire.gen.ts")
