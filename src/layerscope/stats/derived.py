"""Statistics, histograms, quantiles and exponents, derived from the moments and bit-counts of summaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.errors import SelectError
from layerscope.model import summary_spec
from layerscope.model.number_formats import Range
from layerscope.model.records import Bytes, Floats, Ids, Ints, Series

Column = Callable[[str], Floats]


#: Relative rounding error of a sum of magnitudes. Central moments are differences of raw sums: if that error exceeds
#: a tenth of the difference, the statistic is NaN.
ROUNDING = 1e-15
_SMALL = {"sum": "sum3", "sum_abs": "sum4", "sum2": "sum8"}


def _reliable(moment: Floats, error: Floats) -> Floats:
    return np.where(error <= 0.1 * np.abs(moment), moment, np.nan)


def _in_range(name: str, derive: Callable[[Column], Floats]) -> Callable[[Column], Floats]:
    """The statistic, computed from the scaled sums of `summary_spec` if the named sum overflowed float64.

    Further columns are read only then.
    """

    def derived(column: Column) -> Floats:
        far = ~np.isfinite(column(name))
        far = far & (column("finite") > 0) if far.any() else far
        if not far.any() or not (far := far & np.isinf(column("sum2"))).any():
            return derive(column)
        small = derive(
            lambda each: np.where(far, column(_SMALL[each]), column(each)) if each in _SMALL else column(each)
        )
        return np.ldexp(small, np.where(far, summary_spec.DOWN, 0))

    return derived


def _variance(column: Column) -> Floats:
    """Reads the extremes only if rounding dominates the sums: equal elements have variance 0."""
    mean, square = column("sum") / column("finite"), column("sum2") / column("finite")
    variance = _reliable(square - mean**2, ROUNDING * square)
    unknown = np.isnan(variance)
    return np.where(unknown & (column("min") == column("max")), 0.0, variance) if unknown.any() else variance


# numpy is fast only for the second power: any higher one takes ten times as long.


def _skew(column: Column) -> Floats:
    n, mean = column("finite"), column("sum") / column("finite")
    third = column("sum3") / n - 3 * mean * column("sum2") / n + 2 * mean * mean**2
    scale = _reliable(_variance(column) ** 1.5, 6 * ROUNDING * (column("sum4") / n) ** 0.75)
    return np.where((scale > 0) & np.isfinite(scale), third / scale, np.nan)


def _kurtosis(column: Column) -> Floats:
    n, mean = column("finite"), column("sum") / column("finite")
    fourth = column("sum4") / n - 4 * mean * column("sum3") / n + 6 * mean**2 * column("sum2") / n - 3 * (mean**2) ** 2
    scale = _reliable(_variance(column) ** 2, 14 * ROUNDING * column("sum4") / n)
    return np.where((scale > 0) & np.isfinite(scale), fourth / scale, np.nan)


_DERIVED: dict[str, Callable[[Column], Floats]] = {
    "mean": _in_range("sum", lambda c: c("sum") / c("finite")),
    "mean_abs": _in_range("sum_abs", lambda c: c("sum_abs") / c("finite")),
    "std": _in_range("sum2", lambda c: np.sqrt(_variance(c))),
    "rms": _in_range("sum2", lambda c: np.sqrt(c("sum2") / c("finite"))),
    "norm": _in_range("sum2", lambda c: np.where((c("finite") == 0) & (c("count") > 0), np.nan, np.sqrt(c("sum2")))),
    "skew": _skew,
    "kurtosis": _kurtosis,  # 3 for a normal distribution
    "zero_share": lambda c: c("zeros") / c("count"),
}

#: Every statistic of a tensor, in the column order of tables.
STATS = ("count", *_DERIVED, "min", "max", "abs_min", "abs_max", "zeros", "subnormal", "nan", "pos_inf", "neg_inf")

#: Names that a custom statistic must not have, in upper or lower case: tables and SQL use them.
RESERVED = frozenset(
    (*STATS, *summary_spec.MOMENTS, "rank", "session", "step", "series", *(field.name for field in fields(Series)))
)


def statistic(name: str, column: Column) -> Floats:
    """One statistic of many summaries; `column` returns their moments by name. NaN if undefined.

    Statistics cover the finite elements; `std` divides by n. Central moments are differences of raw float64 sums;
    they are NaN for a distribution too narrow for that (`std` below about 1e-7 of the mean).
    """
    if name not in STATS:
        raise SelectError(f"Unknown statistic {name!r}. Statistics: {', '.join(STATS)}.")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _DERIVED[name](column) if name in _DERIVED else column(name)


kernel: ModuleType | None
try:
    from layerscope.stats import _kernel as kernel
except ImportError:  # no compiler at installation: numpy computes the same, more slowly
    kernel = None


@dataclass(frozen=True, slots=True)
class BitRows:
    """Decoded bit-counts of many summaries: bucket i covers [low[i], high[i]] of summary row[i]."""

    rows: int
    row: Ints
    low: Floats
    high: Floats
    counts: Ints
    exponent: Ids  # floor(log2 |x|) of the bucket

    @property
    def columns(self) -> tuple[Ints, Floats, Floats, Ints, Ids]:
        """The five columns in the order of the kernel's arguments."""
        return self.row, self.low, self.high, self.counts, self.exponent


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Encoded bit-counts of many summaries (see `summary_spec.decode_rows`), with minimum and maximum of each."""

    m: Bytes
    offsets: Ints
    encoded: Bytes
    smallest: Floats
    largest: Floats

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for part in (self.m, self.offsets, self.encoded, self.smallest, self.largest))

    def take(self, rows: Ints) -> EncodedRows:
        """The given rows."""
        sizes = np.diff(self.offsets)[rows]
        offsets = np.cumsum(np.append(0, sizes))
        moved = self.offsets[rows] - self.offsets[0] - offsets[:-1]
        bytes_ = np.arange(offsets[-1]) + np.repeat(moved, sizes)
        return EncodedRows(self.m[rows], offsets, self.encoded[bytes_], self.smallest[rows], self.largest[rows])

    def decoded(self, starts: Ints | None = None) -> BitRows:
        """The clipped buckets; rows starts[i] to starts[i + 1] − 1 are merged, by default each row alone."""
        starts = np.arange(len(self.m) + 1) if starts is None else starts
        return _decoded(self, starts) if kernel is None else _decoded_by_kernel(kernel, self, starts)


def _decoded_by_kernel(kernel: ModuleType, rows: EncodedRows, starts: Ints) -> BitRows:
    begin, end = rows.offsets[starts[[0, -1]]] - rows.offsets[0]
    most = np.count_nonzero(rows.encoded[begin:end] < 0x80) // 2  # a gap and a count for each bucket
    row, counts, exponent = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int32)
    low, high = np.empty(most), np.empty(most)
    decoded = BitRows(len(starts) - 1, row, low, high, counts, exponent)
    given = _addresses(rows.m, rows.offsets, rows.encoded, rows.smallest, rows.largest, starts)
    n = kernel.decode(*given, decoded.rows, *_addresses(*decoded.columns))
    return BitRows(decoded.rows, row[:n], low[:n], high[:n], counts[:n], exponent[:n])


def _addresses(*arrays: npt.NDArray[Any]) -> list[int]:  # Any: columns of any type
    assert all(array.flags.c_contiguous for array in arrays)
    return [array.ctypes.data for array in arrays]


def _decoded(rows: EncodedRows, starts: Ints) -> BitRows:
    part = slice(int(starts[0]), int(starts[-1]))
    begin = rows.offsets[part.start] - rows.offsets[0]
    bits = decode_bits(rows.m[part], rows.offsets[part.start : part.stop + 1], rows.encoded[begin:])
    bits = clip(bits, rows.smallest[part], rows.largest[part])
    group = (np.searchsorted(starts, np.arange(part.start, part.stop), side="right") - 1)[bits.row]
    order = np.lexsort((bits.high, bits.low, group))
    group, low, high = group[order], bits.low[order], bits.high[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (group[1:] > group[:-1]) | (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    first = np.flatnonzero(new)
    counts = np.add.reduceat(bits.counts[order], first) if len(first) else bits.counts
    return BitRows(len(starts) - 1, group[first], low[first], high[first], counts, bits.exponent[order][first])


def decode_bits(m: Bytes, offsets: Ints, encoded: Bytes) -> BitRows:
    """Decoded buckets of many encoded bit-counts (see `summary_spec.decode_rows`), not clipped."""
    row, codes, counts = summary_spec.decode_rows(m, offsets, encoded)
    wide = m.astype(np.int32)[row]
    low, high = np.empty(len(row)), np.empty(len(row))
    for bits in np.unique(m):
        chosen = np.flatnonzero(wide == bits)
        low[chosen], high[chosen] = _bounds(codes[chosen], int(bits))
    return BitRows(len(m), row, low, high, counts, (np.abs(codes) >> wide) - np.int32(summary_spec.EXPONENT_BIAS))


def _bounds(codes: Ids, m: int) -> tuple[Floats, Floats]:
    """`summary_spec.bounds_of`, by table lookup if many buckets share few codes."""
    if len(codes) == 0:
        return summary_spec.bounds_of(codes, m)
    first, last = int(codes.min()), int(codes.max())
    if last - first >= len(codes):
        return summary_spec.bounds_of(codes, m)
    low, high = summary_spec.bounds_of(np.arange(first, last + 1, dtype=np.int32), m)
    index = codes - first
    return low[index], high[index]


def clip(bits: BitRows, smallest: Floats, largest: Floats) -> BitRows:
    """Buckets clipped to the true minimum and maximum of their summaries."""
    low = np.maximum(bits.low, smallest[bits.row])
    high = np.maximum(np.minimum(bits.high, largest[bits.row]), low)
    return BitRows(bits.rows, bits.row, low, high, bits.counts, bits.exponent)


def cumulative(bits: BitRows, edges: Floats) -> Floats:
    """Number of counted elements of each row below each edge, (rows, edges); linear inside a bucket.

    Edges must ascend. Elements exactly on an edge are not below it, except on the last edge: the last bin of a
    histogram includes its end.
    """
    if kernel is None:
        return _cumulative(bits, edges)
    result, edges = np.empty((bits.rows, len(edges))), np.ascontiguousarray(edges, np.float64)
    given = (len(bits.row), *_addresses(edges), len(edges), bits.rows)
    kernel.cumulative(*_addresses(*bits.columns), *given, *_addresses(result))
    return result


def _cumulative(bits: BitRows, edges: Floats) -> Floats:
    across = len(edges) + 1  # the last column is for elements below no edge
    first, behind = _edges_within(bits, edges)
    below = _added(bits.row * across + behind, bits.counts, bits.rows * across).reshape(bits.rows, across)
    result = np.cumsum(below, axis=1)[:, :-1]  # a bucket is below every later edge
    cut = np.flatnonzero(first < behind)  # buckets with edges inside: only a share is below
    edges_inside = behind[cut] - first[cut]
    which = np.repeat(cut, edges_inside)
    edge = np.arange(len(which)) + np.repeat(first[cut] - np.cumsum(edges_inside) + edges_inside, edges_inside)
    low, width = bits.low[which], bits.high[which] - bits.low[which]
    with np.errstate(invalid="ignore"):
        share = (edges[edge] - low) / width
    at = bits.row[which] * len(edges) + edge
    result += _added(at, share * bits.counts[which], result.size).reshape(result.shape)
    np.minimum(result, below.sum(axis=1, keepdims=True), out=result)  # rounded shares may exceed the total
    return result


def _edges_within(bits: BitRows, edges: Floats) -> tuple[Ints, Ints]:
    """For each bucket the first edge at or above its low end, and the first edge above the whole bucket."""
    first = np.searchsorted(edges, bits.low)
    behind = np.append(first[1:], 0)  # most buckets end where the next one begins
    other = np.flatnonzero(bits.high[:-1] != bits.low[1:])
    other = np.append(other, len(first) - 1)[: len(first)]
    behind[other] = np.searchsorted(edges, bits.high[other])
    points = np.flatnonzero(bits.low == bits.high)
    value = bits.low[points]
    first[points] = np.searchsorted(edges, value, side="right") - (value == edges[-1])
    behind[points] = first[points]
    return first, behind[: len(first)]


def _added(index: Ints, weights: Floats | Ints, size: int) -> Floats:
    """Sum of the weights per index; exact for counts below 2**53."""
    return np.bincount(index, weights, size).astype(np.float64, copy=False)


def histogram(bits: BitRows, edges: Floats) -> Floats:
    """Counts of each row between the edges, (rows, len(edges) - 1), without zeros."""
    return np.diff(cumulative(bits, edges), axis=1)


def quantiles(bits: BitRows, zeros: Floats, shares: Floats) -> Floats:
    """Quantiles of each row's finite elements, (rows, shares); exact to the bucket."""
    if kernel is None:
        return _quantiles(bits, zeros, shares)
    zeros, shares = (np.ascontiguousarray(numbers, np.float64) for numbers in (zeros, shares))
    result = np.empty((bits.rows, len(shares)))
    given = (len(bits.row), *_addresses(zeros), bits.rows, *_addresses(shares), len(shares))
    kernel.quantiles(*_addresses(*bits.columns), *given, *_addresses(result))
    return result


def _quantiles(bits: BitRows, zeros: Floats, shares: Floats) -> Floats:
    bits = _with_zeros(bits, zeros)
    result = np.full((bits.rows, len(shares)), np.nan)
    buckets = np.bincount(bits.row, minlength=bits.rows)
    occupied = np.flatnonzero(buckets)
    if len(occupied) == 0:
        return result
    last = np.cumsum(buckets)[occupied, None] - 1
    upto = np.cumsum(bits.counts)  # over all rows, concatenated
    before = upto[last] - _added(bits.row, bits.counts, bits.rows)[occupied, None]
    wanted = shares * (upto[last] - before)
    bucket = np.clip(np.searchsorted(upto, before + wanted), last - buckets[occupied, None] + 1, last)
    counts = bits.counts[bucket]
    inside = np.clip((wanted - (upto[bucket] - before - counts)) / counts, 0.0, 1.0)
    result[occupied] = bits.low[bucket] + inside * (bits.high[bucket] - bits.low[bucket])
    return result


def pooled_quantiles(bits: BitRows, zeros: float, shares: Floats, *, of_magnitudes: bool = False) -> Floats:
    """`quantiles` of all rows merged, for shares above 0; sorts only the buckets near a quantile."""
    low, high = magnitudes_of(bits) if of_magnitudes else (bits.low, bits.high)
    leading = (low.view(np.uint64) >> np.uint64(48)).astype(np.uint16)  # sign, exponent, top bits of the mantissa
    slot = np.where(leading >> 15, ~leading, leading | 0x8000)  # in the order of the values
    upto = np.cumsum(_added(slot, bits.counts, 1 << 16))
    upto[1 << 15 :] += zeros
    result = np.empty(len(shares))
    for at, wanted in enumerate(shares * upto[-1]):
        target = int(np.searchsorted(upto, wanted))
        near = np.flatnonzero(slot == target)
        near = near[np.lexsort((bits.low[near], low[near]))]
        ends = np.stack((low[near], high[near], bits.counts[near]))
        if target == 1 << 15 and zeros:
            ends = np.insert(ends, 0, (0.0, 0.0, zeros), axis=1)
        before = upto[target] - ends[2].sum() + np.cumsum(ends[2])
        bucket = min(int(np.searchsorted(before, wanted)), len(before) - 1)
        first, last, counts = ends[:, bucket]
        result[at] = first + np.clip((wanted - (before[bucket] - counts)) / counts, 0.0, 1.0) * (last - first)
    return result


def magnitudes_of(bits: BitRows) -> tuple[Floats, Floats]:
    """Bounds of the absolute values of the buckets."""
    negative = bits.low < 0
    return np.where(negative, -bits.high, bits.low), np.where(negative, -bits.low, bits.high)


def _with_zeros(bits: BitRows, zeros: Floats) -> BitRows:
    """The same buckets, with a bucket for the zeros of each row between its negative and positive buckets."""
    rows = np.flatnonzero(zeros)
    up_to_row = np.cumsum(np.bincount(bits.row, minlength=bits.rows))
    positive = np.bincount(bits.row[bits.low >= 0], minlength=bits.rows)
    index = (up_to_row - positive)[rows]
    return BitRows(
        bits.rows,
        np.insert(bits.row, index, rows),
        np.insert(bits.low, index, 0.0),
        np.insert(bits.high, index, 0.0),
        np.insert(bits.counts, index, zeros[rows].astype(np.int64)),
        np.insert(bits.exponent, index, 0),
    )


def exponents(bits: BitRows) -> tuple[Ids, Ints]:
    """The base-2 exponents that occur, and the exact count of elements per row and exponent, (rows, exponents)."""
    if len(bits.exponent) == 0:
        return bits.exponent, np.zeros((bits.rows, 0), np.int64)
    smallest = bits.exponent.min()
    index = bits.exponent - smallest
    across = int(index.max()) + 1
    counts = _added(bits.row * across + index, bits.counts, bits.rows * across).reshape(bits.rows, across)
    present = np.flatnonzero(np.bincount(index))
    return (present + smallest).astype(np.int32), counts[:, present].astype(np.int64)


def lost(magnitudes: BitRows, range_: Range) -> Floats:
    """Number of elements of each row that would become zero, subnormal, or too large, (rows, 3).

    Exact if the limits of the range are bucket bounds, as powers of two are.
    """
    edges = np.array([range_.rounded_to_zero, range_.smallest_normal, range_.rounded_beyond, np.finfo(np.float64).max])
    below = cumulative(magnitudes, edges)
    return np.stack((below[:, 0], below[:, 1] - below[:, 0], below[:, 3] - below[:, 2]), axis=1)
