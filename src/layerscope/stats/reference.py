"""Summaries by plain float64 numpy: slow, and obviously what `spec` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from layerscope.records import Floats
from layerscope.stats import spec


def summarize(values: npt.NDArray[Any], smallest_normal: float) -> spec.Summary:
    """Summary of an array whose format has the given smallest normal magnitude (see `spec.SMALLEST_NORMAL`).

    Values are taken as float64: exact, but for integers beyond 2**53, which round.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
        wide = np.asarray(values).ravel().astype(np.float64)
    finite = wide[np.isfinite(wide)]
    nonzero = finite[finite != 0]
    moments = np.concatenate((_counts(wide, nonzero, smallest_normal), _sums(finite), _extremes(finite, nonzero)))
    return spec.Summary(moments, _bit_counts(nonzero))


def _counts(wide: Floats, nonzero: Floats, smallest_normal: float) -> list[float]:
    finite = np.isfinite(wide).sum()
    return [
        len(wide),
        finite,
        finite - len(nonzero),
        (np.abs(nonzero) < smallest_normal).sum(),
        np.isnan(wide).sum(),
        np.isposinf(wide).sum(),
        np.isneginf(wide).sum(),
    ]


def _sums(finite: Floats) -> list[float]:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # beyond float64 is Inf, Inf - Inf is NaN
        squared = finite * finite
        fourth = squared * squared
        powers = (finite, np.abs(finite), squared, squared * finite, fourth, fourth * fourth)
        sums = [float(power.sum()) for power in powers]
        return [*sums[:3], *small_sums(finite)] if np.isinf(sums[2]) else sums


def small_sums(finite: Floats) -> list[float]:
    """The sums of y, |y| and y² of finite elements, with y = x / 2**600."""
    small = np.ldexp(finite, -spec.DOWN)
    return [float(power.sum()) for power in (small, np.abs(small), small * small)]


def _extremes(finite: Floats, nonzero: Floats) -> list[float]:
    magnitude = np.abs(finite)
    return [
        finite.min() + 0.0 if len(finite) else np.nan,  # + 0.0: a negative zero is a zero
        finite.max() + 0.0 if len(finite) else np.nan,
        np.abs(nonzero).min() if len(nonzero) else np.nan,
        magnitude.max() if len(finite) else np.nan,
    ]


def _bit_counts(nonzero: Floats) -> spec.BitCounts:
    coarse = spec.count_codes(spec.code_of(nonzero, spec.COARSE_M), spec.COARSE_M)
    if not 0 < len(coarse.codes) < spec.FINE_BELOW:
        return coarse
    exponents = np.frexp(np.abs(nonzero))[1] - 1
    m = spec.fine_m(int(exponents.min()), int(exponents.max()))
    return spec.count_codes(spec.code_of(nonzero, m), m)
