"""What is read off summaries: statistics from moments; histograms, quantiles and exponents from bit-counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from layerscope.errors import SelectError
from layerscope.records import Bytes, Floats, Ids, Ints
from layerscope.stats import spec

Column = Callable[[str], Floats]


def _variance(column: Column) -> Floats:
    mean = column("sum") / column("finite")
    return np.maximum(column("sum2") / column("finite") - mean**2, 0.0)


def _skew(column: Column) -> Floats:
    n, mean = column("finite"), column("sum") / column("finite")
    third = column("sum3") / n - 3 * mean * column("sum2") / n + 2 * mean**3
    return third / _variance(column) ** 1.5


def _kurtosis(column: Column) -> Floats:
    n, mean = column("finite"), column("sum") / column("finite")
    fourth = column("sum4") / n - 4 * mean * column("sum3") / n + 6 * mean**2 * column("sum2") / n - 3 * mean**4
    return fourth / _variance(column) ** 2


_DERIVED: dict[str, Callable[[Column], Floats]] = {
    "mean": lambda c: c("sum") / c("finite"),
    "mean_abs": lambda c: c("sum_abs") / c("finite"),
    "std": lambda c: np.sqrt(_variance(c)),
    "rms": lambda c: np.sqrt(c("sum2") / c("finite")),
    "norm": lambda c: np.sqrt(c("sum2")),
    "skew": _skew,
    "kurtosis": _kurtosis,  # 3 for a normal distribution
    "zero_share": lambda c: c("zeros") / c("count"),
}

#: Every statistic of a tensor's values, in the order in which tables show them.
STATS = ("count", *_DERIVED, "min", "max", "abs_min", "abs_max", "zeros", "subnormal", "nan", "pos_inf", "neg_inf")


def statistic(name: str, column: Column) -> Floats:
    """One statistic of many summaries; `column` gives their moments by name. NaN where it is undefined.

    Of the finite elements, as a whole population: `std` divides by n. Central moments come from
    raw sums in float64: of a distribution as narrow as 1e-7 of its mean, `std` keeps about two digits.
    """
    if name not in STATS:
        raise SelectError(f"No statistic is called {name!r}. There are: {', '.join(STATS)}.")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _DERIVED[name](column) if name in _DERIVED else column(name)


@dataclass(frozen=True, slots=True)
class BitRows:
    """Bit-counts of many summaries, decoded: bucket i lies in [low[i], high[i]] of summary row[i]."""

    rows: int
    row: Ints
    low: Floats
    high: Floats
    counts: Ints
    exponent: Ids  # floor(log2 |x|) of the bucket


def decode_bits(m: Bytes, offsets: Ints, encoded: Bytes) -> BitRows:
    """Decoded buckets of many encoded bit-counts (see `spec.decode_rows`)."""
    row, codes, counts = spec.decode_rows(m, offsets, encoded)
    wide = m.astype(np.int32)[row]
    low, high = np.empty(len(row)), np.empty(len(row))
    for bits in np.unique(wide):
        chosen = wide == bits
        low[chosen], high[chosen] = spec.bounds_of(codes[chosen], int(bits))
    return BitRows(len(m), row, low, high, counts, (np.abs(codes) >> wide) - spec.EXPONENT_BIAS)


def clip(bits: BitRows, smallest: Floats, largest: Floats) -> BitRows:
    """Buckets cut to the true minimum and maximum of their summaries."""
    low = np.maximum(bits.low, smallest[bits.row])
    high = np.maximum(np.minimum(bits.high, largest[bits.row]), low)
    return BitRows(bits.rows, bits.row, low, high, bits.counts, bits.exponent)


def cumulative(bits: BitRows, edges: Floats) -> Floats:
    """How many counted elements of each row lie below each edge, (rows, edges); linear inside a bucket.

    Edges must ascend. Rows are laid end to end on one axis, so that one interpolation serves all of them.
    """
    if len(bits.row) == 0:
        return np.zeros((bits.rows, len(edges)))
    place = np.searchsorted(edges, np.stack((bits.low, bits.high)))  # buckets in a bin need no interpolation
    totals = np.bincount(bits.row, bits.counts, bits.rows)
    below = np.zeros((bits.rows, len(edges) + 1))
    width = bits.high - bits.low
    np.add.at(below, (bits.row, place[1]), bits.counts)  # whole bucket below every edge >= its high end
    split = np.flatnonzero(place[0] < place[1])
    reach = place[1][split] - place[0][split]
    which = np.repeat(split, reach)
    edge = np.arange(len(which)) - np.repeat(np.cumsum(reach) - reach, reach) + np.repeat(place[0][split], reach)
    with np.errstate(invalid="ignore"):
        share = (edges[edge] - bits.low[which]) / width[which]
    result = np.cumsum(below, axis=1)[:, :-1]
    np.add.at(result, (bits.row[which], edge), share * bits.counts[which])
    return np.minimum(result, totals[:, None])


def histogram(bits: BitRows, edges: Floats) -> Floats:
    """Counts of each row between the edges, (rows, len(edges) - 1); zeros are not in it."""
    return np.diff(cumulative(bits, edges), axis=1)


def quantiles(bits: BitRows, zeros: Floats, shares: Floats) -> Floats:
    """Values below which the given shares of each row's finite elements lie, (rows, shares); exact to the bucket."""
    result = np.full((bits.rows, len(shares)), np.nan)
    starts = np.searchsorted(bits.row, np.arange(bits.rows + 1))
    for row in range(bits.rows):
        part = slice(starts[row], starts[row + 1])
        low, high, counts = bits.low[part], bits.high[part], bits.counts[part].astype(np.float64)
        if zeros[row]:
            at = int(np.searchsorted(low, 0.0))
            low, high = np.insert(low, at, 0.0), np.insert(high, at, 0.0)
            counts = np.insert(counts, at, zeros[row])
        if len(counts):
            result[row] = _inverse(low, high, counts, shares)
    return result


def _inverse(low: Floats, high: Floats, counts: Floats, shares: Floats) -> Floats:
    upto = np.cumsum(counts)
    wanted = shares * upto[-1]
    bucket = np.minimum(np.searchsorted(upto, wanted), len(counts) - 1)
    inside = (wanted - (upto[bucket] - counts[bucket])) / counts[bucket]
    return low[bucket] + np.clip(inside, 0.0, 1.0) * (high[bucket] - low[bucket])


def exponents(bits: BitRows) -> tuple[Ids, Ints]:
    """The base-2 exponents that occur, and each row's exact count of elements per exponent, (rows, exponents)."""
    present = np.unique(bits.exponent)
    counts = np.zeros((bits.rows, len(present)), np.int64)
    np.add.at(counts, (bits.row, np.searchsorted(present, bits.exponent)), bits.counts)
    return present, counts
