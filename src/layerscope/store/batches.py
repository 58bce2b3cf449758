"""Records → record batches: the columns of each table from what a recorder hands over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from layerscope.records import Event, Ids, Ints, Kpi, Series, Summaries
from layerscope.stats import spec
from layerscope.store.format import SEGMENT_SCHEMA


@dataclass(frozen=True, slots=True)
class NumberedSeries:
    """A series and its number in the run."""

    number: int
    series: Series


def series_row(series: Series) -> dict[str, object]:
    """A series as it stands in the series table and in the metadata of values, but for its number."""
    return {
        "site": series.site,
        "port": series.port,
        "kind": series.kind.value,
        "mode": series.mode.value,
        "reading": series.reading.value,
        "dtype": series.dtype,
        "shape": list(series.shape),
    }


def series_batch(rows: Sequence[NumberedSeries]) -> pa.RecordBatch:
    """Rows of the series table."""
    content = [{"series": row.number, **series_row(row.series)} for row in rows]
    return pa.RecordBatch.from_pylist(content, schema=SEGMENT_SCHEMA["series"])


def kpis_batch(rows: Sequence[Kpi]) -> pa.RecordBatch:
    """Rows of the KPI table."""
    columns = {
        "step": [row.step for row in rows],
        "name": [row.name for row in rows],
        "value": [float(row.value) for row in rows],
        "time_s": [row.time_s for row in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SEGMENT_SCHEMA["kpis"])


def events_batch(rows: Sequence[Event]) -> pa.RecordBatch:
    """Rows of the event table."""
    columns = {
        "step": [row.step for row in rows],
        "level": [row.level for row in rows],
        "text": [row.text for row in rows],
        "time_s": [row.time_s for row in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SEGMENT_SCHEMA["events"])


def moments_batch(items: Sequence[Summaries]) -> pa.RecordBatch:
    """Rows of the moments table: those of one step after the other."""
    alias = np.concatenate([item.alias for item in items])
    moments = np.concatenate([item.moments for item in items]).T.copy()  # a column is then one run of memory
    is_alias = alias >= 0
    mask = is_alias if is_alias.any() else None
    if mask is not None:
        moments[:, mask] = 0.0  # what an alias row has there is undefined
    counts = moments[: len(spec.COUNTS)].astype(np.int64)
    columns = [
        pa.array(_steps(items)),
        pa.array(np.concatenate([item.series for item in items])),
        pa.array(alias, mask=~is_alias),
        pa.array(np.concatenate([item.scale for item in items])),
        pa.array(np.concatenate([item.merged for item in items])),
        *(pa.array(column, mask=mask) for column in (*counts, *moments[len(spec.COUNTS) :])),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["moments"])


def bits_batch(items: Sequence[Summaries]) -> pa.RecordBatch:
    """Rows of the bit-count table; an alias has none."""
    columns = [
        pa.array(_steps(items)),
        pa.array(np.concatenate([item.series for item in items])),
        pa.array(np.concatenate([item.m for item in items])),
        pa.concat_arrays([_binary(item) for item in items]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SEGMENT_SCHEMA["bits"])
    alias: Ids = np.concatenate([item.alias for item in items])
    return batch.filter(pa.array(alias < 0)) if (alias >= 0).any() else batch


def _steps(items: Sequence[Summaries]) -> Ints:
    return np.repeat(np.array([item.step for item in items], np.int64), [len(item.series) for item in items])


def _binary(item: Summaries) -> pa.Array:
    offsets = item.offsets.astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(item.series), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(item.bits))]
    )
