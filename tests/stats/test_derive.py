"""Statistics that are read off moments, against the raw data."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from layerscope.errors import SelectError
from layerscope.model import summary_spec
from layerscope.model.records import Floats
from layerscope.stats import derived, kernel, merging
from layerscope.stats.kernel import Arena, format_number
from tests.stats.arrays import NORMAL


def moments_of(values: list[Floats]) -> Floats:
    return np.stack([kernel.summarize(v, summary_spec.SMALLEST_NORMAL["float64"]).moments for v in values])


def summarized(values: Floats) -> Floats:
    """The moments that the kernel gives."""
    arena = Arena()
    arena.add(values.ctypes.data, len(values), format_number("float64"))
    moments: Floats = arena.drain().moments[0]
    return moments


def statistic(name: str, values: Floats) -> float:
    moments = moments_of([values])
    return float(derived.statistic(name, lambda column: moments[:, summary_spec.COLUMN[column]])[0])


def standardized(power: int) -> Callable[[Floats], float]:
    return lambda x: float(np.mean((x - x.mean()) ** power) / x.std() ** power)


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("count", np.size),
        ("mean", np.mean),
        ("mean_abs", lambda x: np.abs(x).mean()),
        ("std", np.std),
        ("rms", lambda x: np.sqrt(np.square(x).mean())),
        ("norm", np.linalg.norm),
        ("skew", standardized(3)),
        ("kurtosis", standardized(4)),
        ("min", np.min),
        ("max", np.max),
        ("abs_min", lambda x: np.abs(x[x != 0]).min()),
        ("abs_max", lambda x: np.abs(x).max()),
        ("zeros", lambda x: (x == 0).sum()),
        ("zero_share", lambda x: (x == 0).mean()),
    ],
)
@pytest.mark.parametrize("values", [NORMAL, np.maximum(NORMAL, 0), NORMAL * 1e-20, NORMAL**3], ids=str)
def test_a_statistic_is_that_of_the_finite_values(name: str, truth: Callable[[Floats], float], values: Floats) -> None:
    assert statistic(name, values) == pytest.approx(truth(values), rel=1e-9, abs=1e-9 * statistic("abs_max", values))
    if not name.startswith(("count", "zero")):
        strewn = np.concatenate((values, [np.nan, np.inf, -np.inf]))
        assert statistic(name, strewn) == pytest.approx(statistic(name, values), rel=1e-12)


def test_every_statistic_has_a_value_for_ordinary_data() -> None:
    assert all(np.isfinite(statistic(name, NORMAL)) for name in derived.STATS)


def test_a_narrow_distribution_far_from_zero_keeps_the_stated_digits_of_its_std() -> None:
    values = 1.0 + 1e-6 * NORMAL
    assert statistic("std", values) == pytest.approx(values.std(), rel=0.05)


def test_statistics_of_no_elements_are_nan_or_zero() -> None:
    assert np.isnan(statistic("mean", np.zeros(0)))
    assert np.isnan(statistic("max", np.full(3, np.nan)))
    assert statistic("count", np.zeros(0)) == 0


def test_an_unknown_statistic_is_named_with_those_there_are() -> None:
    with pytest.raises(SelectError, match=r"Unknown statistic 'median'\. Statistics: count, mean"):
        statistic("median", NORMAL)


@pytest.mark.parametrize("width", [1e-2, 1e-4, 1e-6, 1e-8, 1e-12])
@pytest.mark.parametrize("stat", ["std", "skew", "kurtosis"])
def test_a_central_moment_of_a_narrow_distribution_is_near_the_truth_or_unknown(stat: str, width: float) -> None:
    values = 1.0 + width * np.random.default_rng(0).exponential(size=5000).astype(np.float32).astype(np.float64)
    centerd = values - values.mean()
    truth = {
        "std": values.std(),
        "skew": np.mean(centerd**3) / values.std() ** 3,
        "kurtosis": np.mean(centerd**4) / values.std() ** 4,
    }[stat]
    moments = kernel.summarize(values, 2.0**-126).moments
    got = derived.statistic(stat, lambda name: moments[[summary_spec.COLUMN[name]]])[0]
    assert np.isnan(got) or got == pytest.approx(truth, rel=0.2)
    assert not np.isnan(got) or width < 1e-3


def test_equal_elements_have_no_spread_and_no_shape() -> None:
    moments = kernel.summarize(np.full(10, 0.1), 2.0**-126).moments
    stats = {
        n: derived.statistic(n, lambda name: moments[[summary_spec.COLUMN[name]]])[0]
        for n in ("std", "skew", "kurtosis")
    }
    assert stats["std"] == 0
    assert np.isnan(stats["skew"])
    assert np.isnan(stats["kurtosis"])


def test_the_norm_of_nothing_finite_is_unknown() -> None:
    moments = kernel.summarize(np.full(10, np.nan), 2.0**-126).moments
    assert np.isnan(derived.statistic("norm", lambda name: moments[[summary_spec.COLUMN[name]]])[0])


HUGE = (
    np.array([1e308, 1e308]),
    np.array([1e308, 1.5e308, -1.7e308]),
    np.array([-1e308] * 5),
    np.array([1e200, -3e200, 2e200, 1e-200]),
    1e308 * np.linspace(-1.7, 1.6, 5000),
    np.array([1e155, np.inf, np.nan, -2e155, 0.0]),
)


def exact(name: str, values: Floats) -> float:
    """By fractions, which have no limits; a root is taken of a number that was brought into range."""
    finite = [Fraction(value) for value in values[np.isfinite(values)].tolist()]
    unit = max(map(abs, finite))
    small, n = [value / unit for value in finite], len(finite)
    mean = sum(small) / n
    squares = {"rms": sum(v * v for v in small) / n, "norm": sum(v * v for v in small)}
    squares["std"] = sum((v - mean) ** 2 for v in small) / n
    of = {"mean": mean, "mean_abs": sum(map(abs, small)) / n}
    share = float(of[name]) if name in of else math.sqrt(float(squares[name]))
    return share * float(unit)


@pytest.mark.parametrize("name", ["mean", "mean_abs", "std", "rms", "norm"])
@pytest.mark.parametrize("values", HUGE, ids=lambda values: f"{len(values)}:{values[0]:g}")
def test_statistics_of_float64_are_right_up_to_its_largest_number(name: str, values: Floats) -> None:
    wanted = exact(name, values)
    assert statistic(name, values) == pytest.approx(wanted, rel=1e-12, abs=1e-12 * statistic("abs_max", values))
    for moments in (
        summary_spec.merge_moments(moments_of(np.array_split(values, 2))),
        summary_spec.merge_moments(moments_of([values, np.zeros(0)])),
        summarized(values),
        summarized(np.concatenate((values[1:], values[:1]))),
    ):
        found = derived.statistic(name, lambda column, row=moments: row[[summary_spec.COLUMN[column]]])[0]  # type: ignore[misc]
        assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12 * statistic("abs_max", values))


def test_a_sum_that_leaves_float64_when_summaries_are_added_up_repeated_or_divided_is_told_right() -> None:
    parts = [np.full(3, 7e153), np.full(2, -5e153), np.array([1.0])]
    arena = Arena()
    for part in parts:
        arena.add(part.ctypes.data, len(part), format_number("float64"))
    summaries = arena.drain()
    assert not np.isinf(summaries.moments[:, summary_spec.COLUMN["sum2"]]).any()
    added = merging.add_up(summaries, [(0, 1, 2)])
    repeated = merging.repeated(added, {0: 7})
    divided = merging.divided(repeated, np.array([4.0]))
    whole = np.concatenate(parts)
    for moments, values in ((added, whole), (repeated, np.tile(whole, 7)), (divided, np.tile(whole / 4, 7))):
        for name in ("mean", "mean_abs", "std", "rms", "norm"):
            row = moments.moments[0]
            (found,) = derived.statistic(name, lambda column: row[[summary_spec.COLUMN[column]]])  # noqa: B023
            assert found == pytest.approx(exact(name, values), rel=1e-12)
    assert np.isinf(repeated.moments[0, summary_spec.COLUMN["sum2"]])


def test_skew_and_kurtosis_of_powers_that_leave_float64_are_not_told() -> None:
    for scale in (1e80, 1e160, 1e300):
        assert math.isnan(statistic("kurtosis", NORMAL * scale))
    assert math.isnan(statistic("skew", NORMAL * 1e300))
