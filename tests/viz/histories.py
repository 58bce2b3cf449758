"""Histories of known tensors."""

from __future__ import annotations

import numpy as np

from layerscope.query.run import History
from layerscope.records import Floats
from layerscope.stats import buckets, spec
from layerscope.stats.reference import summarize


def history_of(tensors: dict[int, Floats]) -> History:
    """The history of a site that held these tensors at these steps."""
    made = [summarize(tensor, spec.SMALLEST_NORMAL["float64"]) for tensor in tensors.values()]
    encoded = [spec.encode(summary.bits) for summary in made]
    moments = np.stack([summary.moments for summary in made])
    bits = buckets.EncodedRows(
        np.array([summary.bits.m for summary in made], np.uint8),
        np.cumsum([0, *map(len, encoded)]),
        np.frombuffer(b"".join(encoded), np.uint8),
        np.ascontiguousarray(moments[:, spec.COLUMN["min"]]),
        np.ascontiguousarray(moments[:, spec.COLUMN["max"]]),
    )
    named = {name: moments[:, column] for name, column in spec.COLUMN.items()}
    return History(np.array(list(tensors)), named, bits)
