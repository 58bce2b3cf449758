"""Specification of a summary: its moments, its bit-counts, their encoding, and how summaries merge.

A summary of a tensor has two parts, both merged by addition:

* **moments**: one float64 per name in `MOMENTS`. Counts are over all elements, sums and extremes over
  the finite ones. An extreme of no elements is NaN. A sum that overflows float64 is ±Inf, or NaN if both occur.
  If `sum2` overflows, so do the higher powers: `sum3`, `sum4` and `sum8` then contain the sums of y, |y| and y²
  with y = x / 2**600 instead, and `mean`, `std`, `rms` and `norm` are derived from these.
* **bit-counts**: the number of finite, non-zero elements that share sign, exponent and the top `m` mantissa bits.

The bucket of x is its *code*: `sign(x) * ((floor(log2 |x|) + 1075) << m | top m mantissa bits)`, by value, not by
the storage format: a float16 subnormal and the same number in float64 have the same code. Codes sort as
the values do, zero has no code, and dropping one bit of |code| halves the resolution: summaries of
different m merge by folding to the smaller. m is 3 (a bucket is at most 12 % wide). If that occupies fewer than
`FINE_BELOW` buckets, the tensor is counted with the `fine_m` of its range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from layerscope.model.records import Bytes, Floats, Ids, Ints

COUNTS = ("count", "finite", "zeros", "subnormal", "nan", "pos_inf", "neg_inf")
SUMS = ("sum", "sum_abs", "sum2", "sum3", "sum4", "sum8")
EXTREMES = ("min", "max", "abs_min", "abs_max")  # abs_min: smallest non-zero magnitude
MOMENTS = COUNTS + SUMS + EXTREMES
ADDED = len(COUNTS) + len(SUMS)  # the first ADDED moments merge by addition, the others by minimum or maximum
COLUMN = {name: column for column, name in enumerate(MOMENTS)}
DOWN = 600  # elements are divided by 2**DOWN if the sum of their squares overflows float64
_SUM2 = COLUMN["sum2"]
_PLAIN, _SMALL = slice(len(COUNTS), len(COUNTS) + 3), slice(len(COUNTS) + 3, ADDED)

EXPONENT_BIAS = 1075  # 2**-1074, the smallest float64, has exponent field 1
TOP_FIELD = 2099  # one above the exponent field of the largest float64
COARSE_M = 3
FINEST_M = 10
FINE_BELOW = 12
FINE_COUNTERS = 1 << 16

#: Smallest normal magnitude of each supported format; smaller values are subnormal.
SMALLEST_NORMAL = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "bfloat16": 2.0**-126,
    "float16": 2.0**-14,
    "int8": 0.0,
    "uint8": 0.0,
    "int16": 0.0,
    "int32": 0.0,
    "int64": 0.0,
    "bool": 0.0,
    "uint16": 0.0,
    "uint32": 0.0,
    "uint64": 0.0,
    "float8_e4m3fn": 2.0**-6,
    "float8_e4m3fnuz": 2.0**-7,
    "float8_e5m2": 2.0**-14,
    "float8_e5m2fnuz": 2.0**-15,
    "float8_e8m0fnu": 0.0,
    "float4_e2m1fn_x2": 1.0,
}


@dataclass(frozen=True, slots=True)
class BitCounts:
    """Occupied buckets in ascending order, and the number of elements in each."""

    m: int
    codes: Ids
    counts: Ints


@dataclass(frozen=True, slots=True)
class Summary:
    """Moments and bit-counts of one tensor, or of several merged."""

    moments: Floats
    bits: BitCounts


def fine_m(smallest_exponent: int, largest_exponent: int) -> int:
    """Mantissa bits for a narrow tensor: as many as fit into `FINE_COUNTERS` for its range of exponents."""
    m = FINEST_M
    while m > COARSE_M and (largest_exponent - smallest_exponent + 1) << m > FINE_COUNTERS:
        m -= 1
    return m


def code_of(values: Floats, m: int) -> Ids:
    """Signed codes of finite, non-zero float64 values.

    >>> code_of(np.array([1.0, -1.0, 1.5]), 3)
    array([ 8600, -8600,  8604], dtype=int32)
    """
    mantissa, exponent = np.frexp(np.abs(values))  # mantissa in [0.5, 1)
    top = np.floor((mantissa * 2.0 - 1.0) * (1 << m)).astype(np.int32)
    code = ((exponent.astype(np.int32) - 1 + EXPONENT_BIAS) << m) | top
    return np.where(np.signbit(values), -code, code).astype(np.int32)


def bounds_of(codes: Ids, m: int) -> tuple[Floats, Floats]:
    """Lower and upper end of each bucket on the number line.

    >>> bounds_of(code_of(np.array([1.0, -1.0]), 3), 3)
    (array([ 1.   , -1.125]), array([ 1.125, -1.   ]))
    """
    magnitude = np.abs(codes)
    exponent = (magnitude >> m) - EXPONENT_BIAS
    top = magnitude & ((1 << m) - 1)
    with np.errstate(over="ignore"):  # the topmost bucket ends at 2**1024, which is Inf
        near = np.ldexp(1.0 + top / (1 << m), exponent)
        far = np.ldexp(1.0 + (top + 1) / (1 << m), exponent)
    negative = codes < 0
    return np.where(negative, -far, near), np.where(negative, -near, far)


def count_codes(codes: Ids, m: int) -> BitCounts:
    """How often each code occurs."""
    unique, counts = np.unique(codes, return_counts=True)
    return BitCounts(m, unique, counts.astype(np.int64))


def fold(bits: BitCounts, m: int) -> BitCounts:
    """The same counts with fewer mantissa bits."""
    if m > bits.m:
        raise ValueError(f"Counts with {bits.m} mantissa bits cannot be refined to {m}.")
    if m == bits.m:
        return bits
    coarse = np.sign(bits.codes) * (np.abs(bits.codes) >> (bits.m - m))
    return _grouped(m, coarse.astype(np.int32), bits.counts)


def _grouped(m: int, codes: Ids, counts: Ints) -> BitCounts:
    unique, inverse = np.unique(codes, return_inverse=True)
    total = np.zeros(len(unique), np.int64)
    np.add.at(total, inverse, counts)
    return BitCounts(m, unique, total)


def merge_bits(parts: list[BitCounts]) -> BitCounts:
    """The counts of all parts merged, at the resolution of the coarsest."""
    m = min(part.m for part in parts)
    folded = [fold(part, m) for part in parts]
    return _grouped(m, np.concatenate([f.codes for f in folded]), np.concatenate([f.counts for f in folded]))


def small_sums(moments: Floats) -> Floats:
    """The sums of y, |y| and y² of many rows, with y = x / 2**DOWN."""
    down: Floats = np.ldexp(moments[:, _PLAIN], [-DOWN, -DOWN, -2 * DOWN])
    return np.where(np.isinf(moments[:, [_SUM2]]), moments[:, _SMALL], down)


def put_small_sums(moments: Floats, sums: Callable[[], Floats]) -> None:
    """Set `sum3`, `sum4` and `sum8` of the rows whose `sum2` overflowed to `sums()`, called only if there are any."""
    beyond = np.isinf(moments[:, _SUM2])
    if beyond.any():
        moments[beyond, _SMALL] = sums()[beyond]


def merge_moments(rows: Floats) -> Floats:
    """Merged moments of several rows."""
    merged = np.empty(len(MOMENTS))
    with np.errstate(invalid="ignore", over="ignore"):  # Inf - Inf is NaN, as specified
        merged[:ADDED] = rows[:, :ADDED].sum(axis=0)
    put_small_sums(merged[None], lambda: small_sums(rows).sum(axis=0)[None])
    for name, combine in (("min", np.fmin), ("max", np.fmax), ("abs_min", np.fmin), ("abs_max", np.fmax)):
        merged[COLUMN[name]] = combine.reduce(rows[:, COLUMN[name]])
    return merged


def merge(*parts: Summary) -> Summary:
    """The summary of the elements of all parts together."""
    moments = merge_moments(np.stack([part.moments for part in parts]))
    return Summary(moments, merge_bits([part.bits for part in parts]))


def encode(bits: BitCounts) -> bytes:
    """Bit-counts as bytes: LEB128 numbers, first the gaps between the codes, then as many counts.

    The first gap starts below the most negative code, `-((TOP_FIELD << m) + 1)`: every gap is at least 1.
    """
    origin = -((TOP_FIELD << bits.m) + 1)
    gaps = np.diff(bits.codes.astype(np.int64), prepend=origin)
    out = bytearray()
    for number in (*gaps.tolist(), *bits.counts.tolist()):
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)


def _numbers(encoded: Bytes) -> tuple[Ints, Ints]:
    """All LEB128 numbers in a byte array, and the end position of each."""
    goes_on = encoded >= 0x80
    begins = np.concatenate(([True], ~goes_on[:-1]))[: len(encoded)]
    numbers = (encoded[begins] & 0x7F).astype(np.int64)
    longer, at, shift = np.flatnonzero(goes_on[begins]), np.flatnonzero(begins & goes_on), 0
    while len(longer):  # most numbers have one byte, fewer have two, and so on
        at, shift = at + 1, shift + 7
        numbers[longer] |= (encoded[at] & 0x7F).astype(np.int64) << shift
        still = goes_on[at]
        longer, at = longer[still], at[still]
    return numbers, np.flatnonzero(~goes_on) + 1


def decode_rows(m: Bytes, offsets: Ints, encoded: Bytes) -> tuple[Ints, Ids, Ints]:
    """Bit-counts of many rows at once: row, code and count of each bucket.

    `encoded` starts with row 0; row i, with `m[i]` mantissa bits, ends at byte `offsets[i + 1] - offsets[0]`.
    A slice of a larger column may keep its offsets.
    """
    offsets = offsets - offsets[0]
    numbers, ends = _numbers(encoded[: offsets[-1]])
    upto = np.searchsorted(ends, offsets, side="right")  # numbers before each offset
    buckets = np.diff(upto) // 2
    is_gap = np.repeat(np.tile([True, False], len(m)), np.repeat(buckets, 2))
    running = np.cumsum(numbers[is_gap])
    last = np.cumsum(buckets)
    before = np.concatenate(([0], running))[last - buckets]  # the running sum ahead of each row
    origin = -((TOP_FIELD << m.astype(np.int64)) + 1)
    codes = running + np.repeat(origin - before, buckets)
    return np.repeat(np.arange(len(m)), buckets), codes.astype(np.int32), numbers[~is_gap]


def decode(m: int, encoded: bytes) -> BitCounts:
    """Inverse of `encode`."""
    data = np.frombuffer(encoded, np.uint8)
    _, codes, counts = decode_rows(np.array([m], np.uint8), np.array([0, len(data)]), data)
    return BitCounts(m, codes, counts)
