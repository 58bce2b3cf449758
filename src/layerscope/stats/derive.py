"""Statistics, read off the moments of summaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from layerscope.errors import SelectError
from layerscope.records import Floats, Series
from layerscope.stats import spec

Column = Callable[[str], Floats]


#: What rounding may have left in a sum of magnitudes, as a share of it. Central moments are differences of raw sums:
#: where that error is not a tenth of the difference at most, there is no telling, and the statistic is NaN.
ROUNDING = 1e-15
_SMALL = {"sum": "sum3", "sum_abs": "sum4", "sum2": "sum8"}


def _told(moment: Floats, error: Floats) -> Floats:
    return np.where(error <= 0.1 * np.abs(moment), moment, np.nan)


def _in_range(name: str, derive: Callable[[Column], Floats]) -> Callable[[Column], Floats]:
    """The same statistic also where the named sum has left float64: of the smaller numbers that `spec` has for that.

    Further columns are asked for only then.
    """

    def derived(column: Column) -> Floats:
        far = ~np.isfinite(column(name))
        far = far & (column("finite") > 0) if far.any() else far
        if not far.any() or not (far := far & np.isinf(column("sum2"))).any():
            return derive(column)
        small = derive(
            lambda each: np.where(far, column(_SMALL[each]), column(each)) if each in _SMALL else column(each)
        )
        return np.ldexp(small, np.where(far, spec.DOWN, 0))

    return derived


def _variance(column: Column) -> Floats:
    """The extremes are asked for last, and only where the sums alone do not tell: then equal elements have none."""
    mean, square = column("sum") / column("finite"), column("sum2") / column("finite")
    told = _told(square - mean**2, ROUNDING * square)
    untold = np.isnan(told)
    return np.where(untold & (column("min") == column("max")), 0.0, told) if untold.any() else told


# Of powers numpy is quick with the second alone: any higher one takes ten times as long.


def _skew(column: Column) -> Floats:
    n, mean = column("finite"), column("sum") / column("finite")
    third = column("sum3") / n - 3 * mean * column("sum2") / n + 2 * mean * mean**2
    scale = _told(_variance(column) ** 1.5, 6 * ROUNDING * (column("sum4") / n) ** 0.75)
    return np.where((scale > 0) & np.isfinite(scale), third / scale, np.nan)


def _kurtosis(column: Column) -> Floats:
    n, mean = column("finite"), column("sum") / column("finite")
    fourth = column("sum4") / n - 4 * mean * column("sum3") / n + 6 * mean**2 * column("sum2") / n - 3 * (mean**2) ** 2
    scale = _told(_variance(column) ** 2, 14 * ROUNDING * column("sum4") / n)
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

#: Every statistic of a tensor's values, in the order in which tables show them.
STATS = ("count", *_DERIVED, "min", "max", "abs_min", "abs_max", "zeros", "subnormal", "nan", "pos_inf", "neg_inf")

#: What no statistic of the user's own may be called, in upper or lower case: tables and SQL have it already.
RESERVED = frozenset(
    (*STATS, *spec.MOMENTS, "rank", "session", "step", "series", *(field.name for field in fields(Series)))
)


def statistic(name: str, column: Column) -> Floats:
    """One statistic of many summaries; `column` gives their moments by name. NaN where it is undefined.

    Of the finite elements, as a whole population: `std` divides by n. Central moments are differences of raw sums
    in float64; of a distribution too narrow for them (`std` below about 1e-7 of the mean) they are NaN.
    """
    if name not in STATS:
        raise SelectError(f"No statistic is called {name!r}. There are: {', '.join(STATS)}.")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _DERIVED[name](column) if name in _DERIVED else column(name)
