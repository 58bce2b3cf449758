"""Histories of known tensors."""

from __future__ import annotations

import numpy as np

from layerscope.model import summary_spec
from layerscope.model.records import Floats
from layerscope.query.history import History
from layerscope.stats import derived
from layerscope.stats.kernel import summarize


def history_of(tensors: dict[int, Floats]) -> History:
    """The history of a site that held these tensors at these steps."""
    made = [summarize(tensor, summary_spec.SMALLEST_NORMAL["float64"]) for tensor in tensors.values()]
    encoded = [summary_spec.encode(summary.bits) for summary in made]
    moments = np.stack([summary.moments for summary in made])
    bits = derived.EncodedRows(
        np.array([summary.bits.m for summary in made], np.uint8),
        np.cumsum([0, *map(len, encoded)]),
        np.frombuffer(b"".join(encoded), np.uint8),
        np.ascontiguousarray(moments[:, summary_spec.COLUMN["min"]]),
        np.ascontiguousarray(moments[:, summary_spec.COLUMN["max"]]),
    )
    named = {name: moments[:, column] for name, column in summary_spec.COLUMN.items()}
    return History(np.array(list(tensors)), named, bits)
