"""Number formats: their layout in memory, and the range they represent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from layerscope.model.records import Floats

#: Formats of more than one byte, in the order of the kernel's format numbers.
WORDS = ("float32", "float64", "bfloat16", "float16", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def _floats(mantissa_bits: int, bias: int, size: int = 256) -> Floats:
    """Values of all `size` patterns of sign, exponent and mantissa, as if all were finite."""
    pattern = np.arange(size)
    sign, rest = 1 - 2 * (pattern // (size // 2)), pattern % (size // 2)
    field, mantissa = rest >> mantissa_bits, rest & ((1 << mantissa_bits) - 1)
    whole = np.where(field == 0, mantissa, mantissa + (1 << mantissa_bits))
    return np.asarray(np.ldexp(sign.astype(np.float64) * whole, np.maximum(field, 1) - bias - mantissa_bits))


def _with(values: Floats, special: dict[int, float]) -> Floats:
    values[list(special)] = list(special.values())
    return values


_NAN, _INF = float("nan"), float("inf")

#: Value of each byte, by format, in the order of the kernel's format numbers. The last format packs two elements
#: into a byte; the table has the value of each half.
BYTES: dict[str, Floats] = {
    "int8": np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float64),
    "uint8": np.arange(256, dtype=np.float64),
    "bool": np.minimum(np.arange(256, dtype=np.float64), 1.0),
    "float8_e4m3fn": _with(_floats(3, 7), {0x7F: _NAN, 0xFF: _NAN}),
    "float8_e4m3fnuz": _with(_floats(3, 8), {0x80: _NAN}),
    "float8_e5m2": _with(
        _floats(2, 15),
        {0x7C: _INF, 0xFC: -_INF, **{sign | low: _NAN for sign in (0, 0x80) for low in (0x7D, 0x7E, 0x7F)}},
    ),
    "float8_e5m2fnuz": _with(_floats(2, 16), {0x80: _NAN}),
    "float8_e8m0fnu": _with(np.ldexp(1.0, np.arange(256) - 127), {0xFF: _NAN}),
    "float4_e2m1fn_x2": np.pad(_floats(1, 1, 16), (0, 240)),
}

#: All formats; the index of a format is its number.
STORED = (*WORDS, *BYTES)


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
        """Magnitudes below this one round to zero; a tie rounds to zero, which is even."""
        return math.nextafter(self.smallest / 2.0, math.inf)

    @property
    def rounded_beyond(self) -> float:
        """Magnitudes from this one on overflow: they are closer to the number after the largest than to the largest."""
        spacing = math.ldexp(1.0, math.frexp(self.largest)[1] - 1 - self.mantissa_bits)
        tie = self.largest + spacing / 2.0
        is_even = self.largest / spacing % 2.0 == 0.0
        return math.nextafter(tie, math.inf) if is_even else tie


#: By name, widest first.
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
