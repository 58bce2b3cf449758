"""Records → record batches: the columns of each table from what a recorder hands over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.records import Cost, Event, Extras, Ints, Metric, Series, StepInfo, Summaries
from layerscope.stats import spec
from layerscope.store.columns import binary, dtype_of, flags, lists, numbers, texts
from layerscope.store.format import SEGMENT_SCHEMA
from layerscope.store.text import json_text

_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class NumberedSeries:
    """A series and its number in the run."""

    number: int
    series: Series


def series_row(series: Series) -> dict[str, object]:
    """A series as it stands in the series table, but for its number."""
    return {
        "site": series.site,
        "port": series.port,
        "kind": series.kind.value,
        "mode": series.mode.value,
        "context": series.context,
        "local": series.local,
        "reading": series.reading.value,
        "dtype": series.dtype,
        "shape": list(series.shape),
    }


def series_batch(rows: Sequence[NumberedSeries]) -> pa.RecordBatch:
    """Rows of the series table."""
    content = [series_row(row.series) for row in rows]
    words = ("site", "port", "kind", "mode", "context", "local", "reading", "dtype")
    columns = [
        numbers(np.array([row.number for row in rows], np.int32)),
        *(texts([str(row[word]) for row in content]) for word in words),
        lists([row.series.shape for row in rows]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["series"])


def records_batch(table: str, rows: Sequence[Metric | Event | Cost | StepInfo]) -> pa.RecordBatch:
    """Rows of a table whose columns are the fields of its records; lists become JSON."""
    schema = SEGMENT_SCHEMA[table]
    fields = [[getattr(row, name) for row in rows] for name in schema.names]
    columns = [
        texts([json_text(value) if isinstance(value, tuple) else value for value in field])
        if kind == pa.string()
        else numbers(np.array(field, dtype_of(kind)))
        for field, kind in zip(fields, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def extras_batch(items: Sequence[Extras]) -> pa.RecordBatch:
    """Rows of the table of extras: those of one step after the other."""
    names = {names: texts(names) for names in {item.names for item in items}}  # most steps have the same
    columns = [
        numbers(_steps(items)),
        numbers(_joined([item.series for item in items])),
        pa.concat_arrays([names[item.names] for item in items]),
        numbers(_joined([item.values for item in items])),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["extras"])


def moments_batch(items: Sequence[Summaries]) -> pa.RecordBatch:
    """Rows of the moments table: those of one step after the other."""
    alias = _joined([item.alias for item in items])
    moments = _joined([item.moments for item in items]).T.copy()  # a column is then one run of memory
    is_alias = alias >= 0
    null = is_alias if is_alias.any() else None
    if null is not None:
        moments[:, null] = 0.0  # what an alias row has there is undefined
    counts = moments[: len(spec.COUNTS)].astype(np.int64)
    columns = [
        numbers(_steps(items)),
        numbers(_joined([item.series for item in items])),
        numbers(alias, ~is_alias),
        numbers(_joined([item.scale for item in items])),
        numbers(_joined([item.merged for item in items])),
        *(numbers(column, null) for column in (*counts, *moments[len(spec.COUNTS) :])),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["moments"])


def bits_batch(items: Sequence[Summaries]) -> pa.RecordBatch:
    """Rows of the bit-count table; an alias has none."""
    encoded = [binary(item.offsets, item.bits) for item in items]
    columns = [
        numbers(_steps(items)),
        numbers(_joined([item.series for item in items])),
        numbers(_joined([item.m for item in items])),
        encoded[0] if len(encoded) == 1 else pa.concat_arrays(encoded),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["bits"])
    alias = _joined([item.alias for item in items])
    return batch.filter(flags(alias < 0)) if (alias >= 0).any() else batch


def _joined(arrays: Sequence[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _steps(items: Sequence[Summaries | Extras]) -> Ints:
    return np.repeat(np.array([item.step for item in items], np.int64), [len(item.series) for item in items])
