"""Realistic summaries without a training: what the benchmarks and tests of store, query and page read and write.

Normal tensors of 10^3 to 10^6 elements whose scale drifts. The counts of the buckets are drawn from their
exact distribution, so that no tensor has to be made; the moments are drawn to fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from layerscope.model import summary_spec
from layerscope.model.records import Bytes, Floats, Ids, Ints, Kind, Mode, Phase, Series, Sink, Summaries

if TYPE_CHECKING:
    from collections.abc import Iterator

OCTAVES = 40  # buckets from 2**-30 to 2**10 times the scale: all a normal tensor of 10^6 elements can reach
_KINDS = (Kind.OUTPUT, Kind.WEIGHT, Kind.WEIGHT_GRAD)
_READINGS = (Phase.FORWARD, Phase.STEP, Phase.OPTIMIZER)


def leb128_rows(numbers: Ints, row_of: Ints, rows: int) -> tuple[Ints, Bytes]:
    """LEB128 bytes of all numbers, and the offset at which each row's bytes start (and one past the end)."""
    wide = np.maximum((np.floor(np.log2(np.maximum(numbers, 1))).astype(np.int64) + 7) // 7, 1)
    start = np.cumsum(wide) - wide
    total = int(wide.sum())
    which = np.repeat(np.arange(len(numbers)), wide)
    place = np.arange(total) - start[which]
    out = ((numbers[which] >> (7 * place)) & 0x7F).astype(np.uint8)
    out[place < wide[which] - 1] |= 0x80
    per_row = np.bincount(row_of, wide, rows).astype(np.int64)
    return np.concatenate(([0], np.cumsum(per_row))), out


def encode_rows(codes: Ids, counts: Ints, m: int) -> tuple[Ints, Bytes]:
    """Encoded bit-counts of many rows that share their codes: `counts` is (rows, codes), zeros are no bucket."""
    rows = len(counts)
    row, column = np.nonzero(counts)
    occupied = np.bincount(row, minlength=rows)
    first = np.cumsum(occupied) - occupied
    code = codes[column].astype(np.int64)
    gaps = np.diff(code, prepend=0)
    gaps[first[occupied > 0]] = code[first[occupied > 0]] + (2099 << m) + 1
    inside = np.arange(len(row)) - first[row]
    numbers = np.empty(2 * len(row), np.int64)
    numbers[2 * first[row] + inside] = gaps
    numbers[2 * first[row] + occupied[row] + inside] = counts[row, column]
    return leb128_rows(numbers, np.repeat(np.arange(rows), 2 * occupied), rows)


def _codes(m: int) -> tuple[Ids, Floats, Floats]:
    top = (summary_spec.EXPONENT_BIAS + 10) << m
    positive = np.arange(top - (OCTAVES << m), top, dtype=np.int32)
    codes = np.concatenate((-positive[::-1], positive)).astype(np.int32)
    low, high = summary_spec.bounds_of(codes, m)
    return codes, low, high


@dataclass(frozen=True, slots=True)
class Recipe:
    """How large a made run is, and which one: equal recipes give equal summaries."""

    series: int = 2000
    steps: int = 200
    alias_every: int = 0  # every n-th series is an alias of the one before it; 0: none
    seed: int = 0


def series_of(recipe: Recipe) -> list[Series]:
    """The series of the run, in the order of their numbers."""
    return [
        Series(f"layers.{i // 6}.block{i % 6 // 3}", "output.0", _KINDS[i % 3], Mode.TRAIN, _READINGS[i % 3], "float32")
        for i in range(recipe.series)
    ]


def steps_of(recipe: Recipe, ids: Ids) -> Iterator[Summaries]:
    """The summaries of one step after another, starting at step 1."""
    rng = np.random.default_rng(recipe.seed)
    size = np.round(10 ** rng.uniform(3, 6, recipe.series))
    sigma = 10 ** rng.uniform(-4, 1, recipe.series)
    codes, low, high = _codes(summary_spec.COARSE_M)
    normal = np.vectorize(lambda x: 0.5 * (1 + erf(x / sqrt(2))))
    grid = np.linspace(-12, 12, 20001)
    table = normal(grid)
    for step in range(1, recipe.steps + 1):
        sigma = sigma * np.exp(rng.normal(0, 0.004, recipe.series))
        upto = np.interp(high[None, :] / sigma[:, None], grid, table)
        share = np.maximum(upto - np.interp(low[None, :] / sigma[:, None], grid, table), 0.0)
        counts = rng.poisson(size[:, None] * share).astype(np.int64)
        yield _summaries(recipe, step, ids, (codes, counts), rng)


def _summaries(recipe: Recipe, step: int, ids: Ids, bits: tuple[Ids, Ints], rng: np.random.Generator) -> Summaries:
    codes, counts = bits
    rows = len(counts)
    alias = np.full(rows, -1, np.int32)
    if recipe.alias_every:
        alias[recipe.alias_every - 1 :: recipe.alias_every] = ids[recipe.alias_every - 2 :: recipe.alias_every][
            : len(alias[recipe.alias_every - 1 :: recipe.alias_every])
        ]
    moments = moments_of(codes, counts, rng)
    moments[alias >= 0] = np.nan
    counts = np.where((alias >= 0)[:, None], 0, counts)
    offsets, encoded = encode_rows(codes, counts, summary_spec.COARSE_M)
    return Summaries(
        step=step,
        series=ids,
        moments=moments,
        m=np.full(rows, summary_spec.COARSE_M, np.uint8),
        offsets=offsets,
        bits=encoded,
        alias=alias,
        scale=np.ones(rows),
        merged=np.ones(rows, np.int32),
    )


def moments_of(codes: Ids, counts: Ints, rng: np.random.Generator) -> Floats:
    """Moments that fit the buckets: every element lies at its bucket's middle, blurred as real ones are."""
    low, high = summary_spec.bounds_of(codes, summary_spec.COARSE_M)
    middle = (low + high) / 2
    moments = np.zeros((len(counts), len(summary_spec.MOMENTS)))
    total = counts.sum(axis=1)
    for name in ("count", "finite"):
        moments[:, summary_spec.COLUMN[name]] = total
    powers = {"sum": middle, "sum_abs": np.abs(middle)} | {f"sum{p}": middle**p for p in (2, 3, 4, 8)}
    for name, weight in powers.items():
        moments[:, summary_spec.COLUMN[name]] = (counts @ weight) * (1 + rng.normal(0, 1e-3, len(counts)))
    occupied = counts > 0
    first, last = occupied.argmax(axis=1), counts.shape[1] - 1 - occupied[:, ::-1].argmax(axis=1)
    inside = rng.uniform(0, 1, (2, len(counts)))
    smallest = (low[first] + (high[first] - low[first]) * inside[0]).astype(np.float32)
    largest = (low[last] + (high[last] - low[last]) * inside[1]).astype(np.float32)
    nearest = np.where(occupied, np.minimum(np.abs(low), np.abs(high)), np.inf).min(axis=1).astype(np.float32)
    extremes = {"min": smallest, "max": largest, "abs_min": nearest, "abs_max": np.maximum(-smallest, largest)}
    for name, column in extremes.items():
        moments[:, summary_spec.COLUMN[name]] = column
    return moments


def fill(sink: Sink, recipe: Recipe, repeat: int = 1) -> int:
    """Puts the recipe's summaries, `repeat` times with the steps counted on; gives the number of the last step."""
    ids = np.array([sink.series_id(series) for series in series_of(recipe)], np.int32)
    made = list(steps_of(recipe, ids))
    for turn in range(repeat):
        for summaries in made:
            sink.put(shifted(summaries, turn * recipe.steps))
    return repeat * recipe.steps


def shifted(summaries: Summaries, by: int) -> Summaries:
    """The same summaries at a later step."""
    fields = {name: getattr(summaries, name) for name in Summaries.__slots__}
    return Summaries(**{**fields, "step": summaries.step + by})
