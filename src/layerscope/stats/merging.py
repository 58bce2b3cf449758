"""Many encoded summaries at once: selecting rows and merging groups of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from layerscope.model import summary_spec
from layerscope.model.records import Bytes, Floats, Ints


class Encoded(NamedTuple):
    """Summaries of many tensors: row i has bit-counts `bits[offsets[i]:offsets[i + 1]]` with `m[i]` mantissa bits."""

    moments: Floats
    m: Bytes
    offsets: Ints
    bits: Bytes


def take(summaries: Encoded, rows: Ints) -> Encoded:
    """The chosen rows in the given order."""
    lengths = np.diff(summaries.offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    source = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - summaries.offsets[rows], lengths)
    return Encoded(summaries.moments[rows], summaries.m[rows], offsets, summaries.bits[source])


def lengthened(summaries: Encoded, more: int) -> Encoded:
    """The summaries, followed by `more` empty ones."""
    if not more:
        return summaries
    return Encoded(
        np.concatenate((summaries.moments, np.broadcast_to(EMPTY, (more, len(EMPTY))))),
        np.concatenate((summaries.m, np.zeros(more, np.uint8))),
        np.concatenate((summaries.offsets, np.full(more, summaries.offsets[-1]))),
        summaries.bits,
    )


EMPTY = np.zeros(len(summary_spec.MOMENTS))
EMPTY[summary_spec.ADDED :] = np.nan


def add_up(summaries: Encoded, groups: list[tuple[int, ...]]) -> Encoded:
    """One merged summary per group of rows."""
    sizes = np.array([len(group) for group in groups])
    members = take(summaries, np.array([row for group in groups for row in group]))
    starts = np.cumsum(sizes) - sizes
    m = np.minimum.reduceat(members.m, starts)
    group_of = np.repeat(np.arange(len(groups)), sizes)
    row, codes, counts = summary_spec.decode_rows(members.m, members.offsets, members.bits)
    folded = np.sign(codes) * (np.abs(codes) >> (members.m[row] - m[group_of[row]]))
    offsets, bits = _regrouped(m, group_of[row], folded, counts)
    return Encoded(_added_moments(members.moments, starts), m, offsets, bits)


def divided(summaries: Encoded, factors: Floats) -> Encoded:
    """The summaries of the same tensors, each divided by a positive factor.

    Exact for powers of two; otherwise the middle of a bucket represents its values. Subnormals are those of the
    undivided tensors, which lost the precision.
    """
    moments = summaries.moments.copy()
    for name, power in _POWERS.items():
        moments[:, summary_spec.COLUMN[name]] /= factors**power
    summary_spec.put_small_sums(
        moments, lambda: summary_spec.small_sums(summaries.moments) / factors[:, None] ** (1, 1, 2)
    )
    row, codes, counts = summary_spec.decode_rows(summaries.m, summaries.offsets, summaries.bits)
    m = summaries.m[row].astype(np.int64)
    size = np.abs(codes)
    middle = 1 + ((size & ((1 << m) - 1)) + 0.5) / (1 << m)
    mantissa, exponent = np.frexp(np.ldexp(middle, (size >> m) - summary_spec.EXPONENT_BIAS) / factors[row])
    field = np.maximum(exponent - 1 + summary_spec.EXPONENT_BIAS, 1)
    moved = np.sign(codes) * ((field << m) + ((2 * mantissa - 1) * (1 << m)).astype(np.int64))
    offsets, bits = _regrouped(summaries.m, row, moved, counts)
    return Encoded(moments, summaries.m, offsets, bits)


def repeated(summaries: Encoded, times: Mapping[int, int]) -> Encoded:
    """The summaries with each element of row i counted `times[i]` times."""
    factors = np.ones(len(summaries.m), np.int64)
    factors[list(times)] = list(times.values())
    moments = summaries.moments.copy()
    with np.errstate(over="ignore"):  # a sum that overflows float64 is ±Inf
        moments[:, : summary_spec.ADDED] *= factors[:, None]
    summary_spec.put_small_sums(moments, lambda: summary_spec.small_sums(summaries.moments) * factors[:, None])
    row, codes, counts = summary_spec.decode_rows(summaries.m, summaries.offsets, summaries.bits)
    offsets, bits = encode_rows(summaries.m, row, codes.astype(np.int64), counts * factors[row])
    return Encoded(moments, summaries.m, offsets, bits)


_POWERS = {"sum": 1, "sum_abs": 1, "sum2": 2, "sum3": 3, "sum4": 4, "sum8": 8} | dict.fromkeys(summary_spec.EXTREMES, 1)


def _regrouped(m: Bytes, row: Ints, codes: Ints, counts: Ints) -> tuple[Ints, Bytes]:
    """Offsets and bytes of rows whose buckets may be in any order and occur more than once."""
    key, inverse = np.unique((row << 32) + codes, return_inverse=True)
    total = np.bincount(inverse, counts, len(key)).astype(np.int64)
    group = (key + (1 << 31)) >> 32
    return encode_rows(m, group, key - (group << 32), total)


def _added_moments(moments: Floats, starts: Ints) -> Floats:
    merged = np.empty((len(starts), moments.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):  # as in summary_spec.merge_moments
        merged[:, : summary_spec.ADDED] = np.add.reduceat(moments[:, : summary_spec.ADDED], starts)
    summary_spec.put_small_sums(merged, lambda: np.add.reduceat(summary_spec.small_sums(moments), starts))
    for name in summary_spec.EXTREMES:
        combine = np.fmin if name in ("min", "abs_min") else np.fmax
        merged[:, summary_spec.COLUMN[name]] = combine.reduceat(moments[:, summary_spec.COLUMN[name]], starts)
    return merged


def encode_rows(m: Bytes, row: Ints, codes: Ints, counts: Ints) -> tuple[Ints, Bytes]:
    """Bit-counts of many rows, each encoded as by `summary_spec.encode`; buckets in order of row, then code."""
    buckets = np.bincount(row, minlength=len(m))
    first = np.cumsum(buckets) - buckets
    gaps = np.diff(codes, prepend=0)
    filled = first[buckets > 0]
    gaps[filled] = codes[filled] + (summary_spec.TOP_FIELD << m[buckets > 0].astype(np.int64)) + 1
    numbers = np.empty(2 * len(codes), np.int64)
    within = np.arange(len(codes)) - np.repeat(first, buckets)
    at = 2 * np.repeat(first, buckets) + within
    numbers[at], numbers[at + np.repeat(buckets, buckets)] = gaps, counts
    ends, data = _leb128(numbers)
    return np.concatenate(([0], ends))[2 * np.concatenate(([0], np.cumsum(buckets)))], data


def _leb128(numbers: Ints) -> tuple[Ints, Bytes]:
    """The numbers as LEB128, and the end position of each."""
    lengths = np.ones(len(numbers), np.int64)
    for septets in range(1, 9):
        lengths += numbers >= 1 << (7 * septets)
    ends = np.cumsum(lengths)
    data = np.zeros(ends[-1] if len(ends) else 0, np.uint8)
    for position in range(int(lengths.max(initial=0))):
        more = lengths > position
        last = lengths == position + 1
        data[(ends - lengths)[more] + position] = (numbers[more] >> (7 * position)) & 0x7F | np.where(
            last[more], 0, 0x80
        )
    return ends, data
