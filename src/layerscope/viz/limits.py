"""The limits of a number format on the exponent axis."""

from __future__ import annotations

from dataclasses import dataclass

from layerscope.records import Floats
from layerscope.stats import buckets
from layerscope.stats.ranges import RANGES, lost

NO_FORMAT = "none"
FORMATS = tuple(RANGES)
USUAL_FORMAT = "float16"  # for tensors in formats that are wide anyway


@dataclass(frozen=True, slots=True)
class Limits:
    """What a number format can hold, and how many elements of each column, or run, it would lose."""

    format: str
    smallest: float  # above zero
    smallest_normal: float
    largest: float
    to_zero: Floats  # elements nearer to zero than to the smallest
    subnormal: Floats
    too_large: Floats


def limits_of(magnitudes: buckets.BitRows, format_: str) -> Limits | None:
    """The limits of a format; None for no format."""
    if format_ == NO_FORMAT:
        return None
    held = RANGES[format_]
    to_zero, subnormal, too_large = lost(magnitudes, held).T.copy()
    return Limits(format_, held.smallest, held.smallest_normal, held.largest, to_zero, subnormal, too_large)


def usual_format(dtype: str) -> str:
    """The format whose limits matter for a tensor: its own where that is narrow."""
    return dtype if dtype in RANGES and dtype != "float32" else USUAL_FORMAT
