"""What number formats can hold, and how many elements of a tensor each of them would lose."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from layerscope.records import Floats
from layerscope.stats import buckets


@dataclass(frozen=True, slots=True)
class Range:
    """The magnitudes of a binary floating-point format."""

    mantissa_bits: int
    smallest_normal: float
    largest: float

    @property
    def smallest(self) -> float:
        """The smallest magnitude above zero, a subnormal."""
        return math.ldexp(self.smallest_normal, -self.mantissa_bits)

    @property
    def rounded_to_zero(self) -> float:
        """Magnitudes below this one become zero; ties go to zero, which is even."""
        return math.nextafter(self.smallest / 2.0, math.inf)

    @property
    def rounded_beyond(self) -> float:
        """Magnitudes from this one on are nearer to what would follow the largest, if there were room for it."""
        spacing = math.ldexp(1.0, math.frexp(self.largest)[1] - 1 - self.mantissa_bits)
        tie = self.largest + spacing / 2.0
        is_even = self.largest / spacing % 2.0 == 0.0
        return math.nextafter(tie, math.inf) if is_even else tie


#: By name, the wide ones first.
RANGES = {
    "float32": Range(23, 2.0**-126, (2.0 - 2.0**-23) * 2.0**127),
    "bfloat16": Range(7, 2.0**-126, (2.0 - 2.0**-7) * 2.0**127),
    "float16": Range(10, 2.0**-14, 65504.0),
    "float8_e5m2": Range(2, 2.0**-14, 57344.0),
    "float8_e5m2fnuz": Range(2, 2.0**-15, 57344.0),
    "float8_e4m3fn": Range(3, 2.0**-6, 448.0),
    "float8_e4m3fnuz": Range(3, 2.0**-7, 240.0),
    "float6_e3m2fn": Range(2, 2.0**-2, 28.0),
    "float6_e2m3fn": Range(3, 1.0, 7.5),
    "float4_e2m1fn": Range(1, 1.0, 6.0),
}


def lost(magnitudes: buckets.BitRows, held: Range) -> Floats:
    """How many elements of each row would become zero, subnormal, or too large, (rows, 3).

    Exact where the end of a range is the end of a bucket, as powers of two are.
    """
    edges = np.array([held.rounded_to_zero, held.smallest_normal, held.rounded_beyond, np.finfo(np.float64).max])
    below = buckets.cumulative(magnitudes, edges)
    return np.stack((below[:, 0], below[:, 1] - below[:, 0], below[:, 3] - below[:, 2]), axis=1)
