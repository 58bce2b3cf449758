"""Statistics of single samples, from their kept values: the same words as over all values, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.query.held import KeptValues
from layerscope.records import Flags, Floats, Ints
from layerscope.stats import derive, spec

_LARGE = 1e150  # squares of larger numbers leave float64
Sampled = tuple[
    Ints, Ints, dict[str, Floats]
]  # steps, samples, and statistics by name: a row for each sample of a step


def statistics_of(samples: npt.NDArray[Any]) -> dict[str, Floats]:
    """Every statistic of each sample; the samples lie along the first axis. Of complex numbers, of magnitudes."""
    kind, count = samples.dtype.name, len(samples)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        real = np.abs(samples) if samples.dtype.kind == "c" else samples
        wide = real.reshape(count, samples.size // max(count, 1)).astype(np.float64)
    finite = np.isfinite(wide)
    moments = _counts(wide, finite, spec.SMALLEST_NORMAL.get(kind, 0.0))
    known = wide if finite.all() else np.where(finite, wide, 0.0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        moments |= _sums(known) | _extremes(known, finite)
        found = {name: derive.statistic(name, moments.__getitem__) for name in derive.STATS}
        # Two passes know it better than raw sums do, which is all that a summary has.
        unit = np.where(moments["abs_max"] > _LARGE, moments["abs_max"], 1.0)
        apart = np.where(finite, known / unit[:, None] - (found["mean"] / unit)[:, None], 0.0)
        found["std"] = np.sqrt(np.square(apart).sum(1) / _or_nan(moments["finite"])) * unit
    return found


def _or_nan(count: Floats) -> Floats:
    return np.where(count > 0, count, np.nan)


def _counts(wide: Floats, finite: Flags, smallest_normal: float) -> dict[str, Floats]:
    counted: dict[str, Flags] = {
        "count": np.ones_like(finite),
        "finite": finite,
        "zeros": wide == 0,
        "subnormal": (wide != 0) & (np.abs(wide) < smallest_normal),
        "nan": np.isnan(wide),
        "pos_inf": np.isposinf(wide),
        "neg_inf": np.isneginf(wide),
    }
    return {name: flags.sum(1).astype(np.float64) for name, flags in counted.items()}


def _sums(known: Floats) -> dict[str, Floats]:
    square = known * known
    fourth = square * square
    powers = (known, np.abs(known), square, square * known, fourth, fourth * fourth)
    sums = {name: power.sum(1) for name, power in zip(spec.SUMS, powers, strict=True)}
    beyond = np.isinf(sums["sum2"])
    if beyond.any():
        small = np.ldexp(known, -spec.DOWN)
        for name, power in zip(spec.SUMS[3:], (small, np.abs(small), small * small), strict=True):
            sums[name] = np.where(beyond, power.sum(1), sums[name])
    return sums


def _extremes(known: Floats, finite: Flags) -> dict[str, Floats]:
    magnitude = np.abs(known)
    found = {
        "min": np.where(finite, known, np.inf).min(1, initial=np.inf),
        "max": np.where(finite, known, -np.inf).max(1, initial=-np.inf),
        "abs_min": np.where(magnitude > 0, magnitude, np.inf).min(1, initial=np.inf),
        "abs_max": np.where(finite, magnitude, -np.inf).max(1, initial=-np.inf),
    }
    return {name: np.where(np.isfinite(values), values, np.nan) for name, values in found.items()}


def sampled(values: Mapping[int, KeptValues]) -> list[Sampled]:
    """The statistics of every sample in values by step; those of equal shape are worked out together."""
    alike: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for step, kept in values.items():
        if len(kept.samples):
            alike.setdefault((kept.array.dtype.name, kept.array.shape[1:]), []).append(step)
    found = []
    for steps in alike.values():
        chosen = [values[step] for step in steps]
        samples = np.concatenate([kept.samples for kept in chosen]).astype(np.int64)
        of = np.repeat(np.array(steps, np.int64), [len(kept.samples) for kept in chosen])
        found.append((of, samples, statistics_of(np.concatenate([kept.array for kept in chosen]))))
    return found


def joined(parts: Sequence[Sampled]) -> Sampled:
    """Several in one; a statistic that a part lacks is NaN in it."""
    names = dict.fromkeys(name for _, _, found in parts for name in found)
    steps, samples = (np.concatenate([np.zeros(0, np.int64), *(part[k] for part in parts)]) for k in (0, 1))
    columns = {
        name: np.concatenate([found.get(name, np.full(len(of), np.nan)) for of, _, found in parts]) for name in names
    }
    return steps, samples, columns
