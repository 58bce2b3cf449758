"""Records → Arrow batches: the rows that a writer appends to the tables of a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.model import summary_spec
from layerscope.model.records import (
    CustomStatistics,
    Event,
    Ids,
    Ints,
    Metric,
    NumberedSeries,
    Overhead,
    SampleStats,
    Series,
    StepInfo,
    Summaries,
    TensorValues,
)
from layerscope.store.columns import binary, dtype_of, flags, json_text, large_binary, lists, numbers, texts
from layerscope.store.format import SEGMENT_SCHEMA

Array = npt.NDArray[Any]  # of one of the types below
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
_NAMES = {  # a lookup costs a tenth of `dtype.name`
    dtype: name for name, little in DTYPES.items() for dtype in (little, little.newbyteorder(">"))
}
_FLOAT64 = DTYPES["float64"]
MOST_BYTES = 1 << 30  # of one array: Parquet supports less than twice as much per value


def why_not(array: Array) -> str | None:
    """Why an array cannot be stored, or None."""
    if array.dtype not in _NAMES:
        return f"its type {array.dtype} is none of {', '.join(DTYPES)}"
    return None if array.nbytes <= MOST_BYTES else f"it has {array.nbytes} bytes, more than {MOST_BYTES}"


def keepable(values: TensorValues) -> list[TensorValues]:
    """The storable values."""
    rows = zip(values.series, values.samples, values.arrays, strict=True)
    return [TensorValues.one(values.step, *row) for row in rows if why_not(row[2]) is None]


def values_batch(items: Sequence[TensorValues]) -> pa.RecordBatch:
    """Rows of the table of values."""
    arrays = [array for item in items for array in item.arrays]
    names = [_NAMES[array.dtype] for array in arrays]
    columns = [
        *_sampled(
            np.repeat([item.step for item in items], [len(item.series) for item in items]),
            [series for item in items for series in item.series],
            [samples for item in items for samples in item.samples],
        ),
        texts(names),
        lists([array.shape for array in arrays]),
        _joined_values([_bytes(array, DTYPES[name]) for array, name in zip(arrays, names, strict=True)]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["values"])


def _bytes(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array in its stored type; usually unchanged."""
    return np.ascontiguousarray(array if array.dtype == dtype else array.astype(dtype))


def sample_stats_batch(items: Sequence[SampleStats]) -> pa.RecordBatch:
    """Rows of the table of statistics of samples."""
    sampled = _sampled([item.step for item in items], [item.series for item in items], [item.samples for item in items])
    columns = [*sampled, _joined_values([_bytes(item.numbers, _FLOAT64) for item in items])]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["sample_stats"])


def _sampled(steps: Sequence[int] | Ints, series: Sequence[int], samples: Sequence[Ids]) -> list[pa.Array]:
    offsets = np.array([0, *accumulate(map(len, samples))], np.int32)
    flat = np.concatenate(samples).astype(np.int64)
    return [
        numbers(np.asarray(steps, np.int64)),
        numbers(np.array(series, np.int32)),
        pa.ListArray.from_arrays(numbers(offsets), numbers(flat)),
    ]


def _joined_values(contents: Sequence[Array]) -> pa.Array:
    offsets = np.array([0, *accumulate(content.nbytes for content in contents)], np.int64)
    return large_binary(offsets, b"".join(contents))  # type: ignore[arg-type]  # an array is its bytes here


_Number = TypeVar("_Number", bound=np.generic)


def series_row(series: Series) -> dict[str, object]:
    """A row of the series table, without its number."""
    return {
        "site": series.site,
        "port": series.port,
        "kind": series.kind.value,
        "mode": series.mode.value,
        "context": series.context,
        "local": series.local,
        "phase": series.phase.value,
        "dtype": series.dtype,
        "shape": list(series.shape),
    }


def series_batch(rows: Sequence[NumberedSeries]) -> pa.RecordBatch:
    """Rows of the series table."""
    content = [series_row(row.series) for row in rows]
    words = ("site", "port", "kind", "mode", "context", "local", "phase", "dtype")
    columns = [
        numbers(np.array([row.number for row in rows], np.int32)),
        *(texts([str(row[word]) for row in content]) for word in words),
        lists([row.series.shape for row in rows]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["series"])


def records_batch(table: str, rows: Sequence[Metric | Event | Overhead | StepInfo]) -> pa.RecordBatch:
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


def custom_statistics_batch(items: Sequence[CustomStatistics]) -> pa.RecordBatch:
    """Rows of the custom-statistics table, step by step."""
    names = {names: texts(names) for names in {item.names for item in items}}  # most steps have the same names
    columns = [
        numbers(_steps(items)),
        numbers(_joined([item.series for item in items])),
        pa.concat_arrays([names[item.names] for item in items]),
        numbers(_joined([item.values for item in items])),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["custom_statistics"])


def moments_batch(items: Sequence[Summaries]) -> pa.RecordBatch:
    """Rows of the moments table, step by step."""
    alias = _joined([item.alias for item in items])
    moments = _joined([item.moments for item in items]).T.copy()  # makes each column contiguous
    is_alias = alias >= 0
    null = is_alias if is_alias.any() else None
    if null is not None:
        moments[:, null] = 0.0  # undefined for alias rows
    counts = moments[: len(summary_spec.COUNTS)].astype(np.int64)
    columns = [
        numbers(_steps(items)),
        numbers(_joined([item.series for item in items])),
        numbers(alias, ~is_alias),
        numbers(_joined([item.scale for item in items])),
        numbers(_joined([item.merged for item in items])),
        *(numbers(column, null) for column in (*counts, *moments[len(summary_spec.COUNTS) :])),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["moments"])


def bits_batch(items: Sequence[Summaries]) -> pa.RecordBatch:
    """Rows of the bit-count table; alias rows have none."""
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


def _steps(items: Sequence[Summaries | CustomStatistics]) -> Ints:
    return np.repeat(np.array([item.step for item in items], np.int64), [len(item.series) for item in items])
