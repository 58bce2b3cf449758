"""Statistics, histograms, quantiles and exponents that are read off summaries, against the raw data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.errors import SelectError
from layerscope.records import Floats
from layerscope.stats import buckets, derive, reference, spec
from tests.stats.arrays import arrays, load

NORMAL = np.random.default_rng(0).standard_normal(20_000) * 0.3 + 0.1
SHARES = np.array([0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0])


def moments_of(values: list[Floats]) -> Floats:
    return np.stack([reference.summarize(v, spec.SMALLEST_NORMAL["float64"]).moments for v in values])


def stored_rows(values: list[Floats]) -> buckets.EncodedRows:
    """The bit-counts of several arrays as they are stored."""
    summaries = [reference.summarize(v, spec.SMALLEST_NORMAL["float64"]) for v in values]
    encoded = [spec.encode(summary.bits) for summary in summaries]
    moments = np.stack([summary.moments for summary in summaries])
    return buckets.EncodedRows(
        np.array([summary.bits.m for summary in summaries], np.uint8),
        np.cumsum([0, *map(len, encoded)]),
        np.frombuffer(b"".join(encoded), np.uint8),
        np.ascontiguousarray(moments[:, spec.COLUMN["min"]]),
        np.ascontiguousarray(moments[:, spec.COLUMN["max"]]),
    )


def rows_of(values: list[Floats]) -> buckets.BitRows:
    """Decoded bit-counts of several arrays, clipped to their extremes."""
    return stored_rows(values).decoded()


def statistic(name: str, values: Floats) -> float:
    moments = moments_of([values])
    return float(derive.statistic(name, lambda column: moments[:, spec.COLUMN[column]])[0])


def standardised(power: int) -> Callable[[Floats], float]:
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
        ("skew", standardised(3)),
        ("kurtosis", standardised(4)),
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
    assert all(np.isfinite(statistic(name, NORMAL)) for name in derive.STATS)


def test_a_narrow_distribution_far_from_zero_keeps_the_stated_digits_of_its_std() -> None:
    values = 1.0 + 1e-6 * NORMAL
    assert statistic("std", values) == pytest.approx(values.std(), rel=0.05)


def test_statistics_of_no_elements_are_nan_or_zero() -> None:
    assert np.isnan(statistic("mean", np.zeros(0)))
    assert np.isnan(statistic("max", np.full(3, np.nan)))
    assert statistic("count", np.zeros(0)) == 0


def test_an_unknown_statistic_is_named_with_those_there_are() -> None:
    with pytest.raises(SelectError, match=r"called 'median'. There are: count, mean"):
        statistic("median", NORMAL)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_histogram_over_everything_holds_every_nonzero_element(dtype: str, data: st.DataObject) -> None:
    values = [load(data.draw(arrays(dtype)), dtype) for _ in range(3)]
    finite = [v[np.isfinite(v)] for v in values]
    everything = max((np.abs(v).max(initial=1.0) for v in finite), default=1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # an axis wider than float64 is no axis
        edges = np.linspace(-everything, everything, 20)
    if np.isfinite(edges).all():
        totals = buckets.histogram(rows_of(values), edges).sum(axis=1)
        np.testing.assert_allclose(totals, [np.count_nonzero(v) for v in finite], rtol=1e-12)


def test_a_histogram_is_close_to_the_true_one() -> None:
    values = [NORMAL, np.abs(NORMAL), 100 + NORMAL]
    bits = rows_of(values)
    for row, raw in enumerate(values):
        edges = np.linspace(raw.min(), raw.max(), 65)
        true, _ = np.histogram(raw, edges)
        assert np.abs(buckets.histogram(bits, edges)[row] - true).sum() / 2 / raw.size < 0.02


def test_a_histogram_with_edges_on_bucket_bounds_is_exact() -> None:
    edges = np.array([-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0])
    true, _ = np.histogram(NORMAL, edges)
    got = buckets.histogram(rows_of([NORMAL]), edges)[0]
    np.testing.assert_allclose(got, true, atol=1e-9)


@pytest.mark.parametrize("constant", [-2.0, -1.0, 0.5, 1.0, 2.0, 3.0])
def test_a_constant_falls_into_the_bin_numpy_puts_it_in(constant: float) -> None:
    edges, values = np.array([-2.0, -1.0, 0.5, 2.0]), np.full(9, constant)
    np.testing.assert_array_equal(buckets.histogram(rows_of([values]), edges)[0], np.histogram(values, edges)[0])


def test_rows_do_not_disturb_each_other() -> None:
    values = [NORMAL, np.zeros(0), 100 + NORMAL[:50], np.zeros(4), np.array([3.0]), -np.abs(NORMAL)]
    edges = np.linspace(-3, 120, 40)
    together = rows_of(values)
    zeros = moments_of(values)[:, spec.COLUMN["zeros"]]
    below, wanted = buckets.histogram(together, edges), buckets.quantiles(together, zeros, SHARES)
    exponents, counts = buckets.exponents(together)
    for row, raw in enumerate(values):
        alone = rows_of([raw])
        np.testing.assert_allclose(below[row], buckets.histogram(alone, edges)[0], rtol=1e-12)
        np.testing.assert_allclose(wanted[row], buckets.quantiles(alone, zeros[row : row + 1], SHARES)[0], rtol=1e-12)
        own, own_counts = buckets.exponents(alone)
        np.testing.assert_array_equal(counts[row][np.isin(exponents, own)], own_counts[0])
        assert counts[row].sum() == own_counts.sum()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(dtype: str, data: st.DataObject) -> None:
    values = load(data.draw(arrays(dtype)), dtype)
    finite = np.sort(values[np.isfinite(values)])
    zeros = np.array([np.count_nonzero(finite == 0)], np.float64)
    bits = rows_of([values])
    if len(finite) == 0:
        assert np.isnan(buckets.quantiles(bits, zeros, SHARES)).all()
        return
    got = buckets.quantiles(bits, zeros, SHARES)[0]
    true = finite[np.maximum(np.ceil(SHARES * len(finite)).astype(int) - 1, 0)]  # first with the share at or below it
    for estimate, value in zip(got, true, strict=True):
        inside = (bits.low <= value) & (value <= bits.high) if value else np.zeros(len(bits.low), bool)
        assert estimate == value or ((bits.low <= estimate) & (estimate <= bits.high) & inside).any()


def test_exponents_are_the_exact_marginal() -> None:
    values = np.concatenate((NORMAL, [2.0**-1074, -(2.0**-1030), 1e300, 0.0, np.nan]))
    present, counts = buckets.exponents(rows_of([values]))
    nonzero = np.abs(values[np.isfinite(values) & (values != 0)])
    wanted, wanted_counts = np.unique(np.frexp(nonzero)[1] - 1, return_counts=True)
    np.testing.assert_array_equal(present, wanted)
    np.testing.assert_array_equal(counts[0], wanted_counts)


def test_no_rows_and_empty_rows_have_empty_results() -> None:
    for values in ([np.zeros(0)], [np.zeros(3), np.full(2, np.nan)]):
        bits, rows = rows_of(values), len(values)
        assert buckets.histogram(bits, np.linspace(-1, 1, 5)).tolist() == [[0.0] * 4] * rows
        assert buckets.exponents(bits)[1].shape == (rows, 0)
    none = buckets.decode_bits(np.zeros(0, np.uint8), np.zeros(1, np.int64), np.zeros(0, np.uint8))
    assert buckets.histogram(none, np.linspace(-1, 1, 5)).shape == (0, 4)
    assert buckets.quantiles(none, np.zeros(0), SHARES).shape == (0, len(SHARES))


@pytest.mark.parametrize("width", [1e-2, 1e-4, 1e-6, 1e-8, 1e-12])
@pytest.mark.parametrize("stat", ["std", "skew", "kurtosis"])
def test_a_central_moment_of_a_narrow_distribution_is_near_the_truth_or_unknown(stat: str, width: float) -> None:
    values = 1.0 + width * np.random.default_rng(0).exponential(size=5000).astype(np.float32).astype(np.float64)
    centred = values - values.mean()
    truth = {
        "std": values.std(),
        "skew": np.mean(centred**3) / values.std() ** 3,
        "kurtosis": np.mean(centred**4) / values.std() ** 4,
    }[stat]
    moments = reference.summarize(values, 2.0**-126).moments
    got = derive.statistic(stat, lambda name: moments[[spec.COLUMN[name]]])[0]
    assert np.isnan(got) or got == pytest.approx(truth, rel=0.2)
    assert not np.isnan(got) or width < 1e-3


def test_equal_elements_have_no_spread_and_no_shape() -> None:
    moments = reference.summarize(np.full(10, 0.1), 2.0**-126).moments
    stats = {n: derive.statistic(n, lambda name: moments[[spec.COLUMN[name]]])[0] for n in ("std", "skew", "kurtosis")}
    assert stats["std"] == 0
    assert np.isnan(stats["skew"])
    assert np.isnan(stats["kurtosis"])


def test_the_norm_of_nothing_finite_is_unknown() -> None:
    moments = reference.summarize(np.full(10, np.nan), 2.0**-126).moments
    assert np.isnan(derive.statistic("norm", lambda name: moments[[spec.COLUMN[name]]])[0])


def assert_same(bits: buckets.BitRows, plain: buckets.BitRows) -> None:
    assert bits.rows == plain.rows
    for column, wanted in zip(bits.columns, plain.columns, strict=True):
        np.testing.assert_array_equal(column, wanted, strict=True)


@pytest.mark.skipif(buckets.kernel is None, reason="there is no compiled kernel to compare with numpy")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_kernel_gives_what_numpy_gives(dtype: str, data: st.DataObject) -> None:
    values = [load(data.draw(arrays(dtype)), dtype) for _ in range(data.draw(st.integers(1, 9)))]
    stored = stored_rows(values)
    starts = np.array(sorted(data.draw(st.sets(st.integers(0, len(values)), min_size=2))))
    bits = stored.decoded(starts)
    zeros = np.add.reduceat(np.append([np.count_nonzero(v == 0) for v in values], 0.0), starts)[:-1]
    edges = np.linspace(-3.0, 7.0, data.draw(st.integers(1, 30)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "kernel", None)
        plain = stored.decoded(starts)
        below, quantiles = buckets.cumulative(plain, edges), buckets.quantiles(plain, zeros, SHARES)
    assert_same(bits, plain)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_allclose(buckets.cumulative(bits, edges), below, rtol=1e-14)
        np.testing.assert_allclose(buckets.quantiles(bits, zeros, SHARES), quantiles, rtol=1e-14)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_quantiles_of_all_rows_together_are_those_of_one_row_that_is_sorted(data: st.DataObject) -> None:
    bits = rows_of([load(data.draw(arrays("float64")), "float64") for _ in range(data.draw(st.integers(1, 9)))])
    zeros = float(data.draw(st.integers(0, 3000)))
    if len(bits.row) + zeros == 0:
        return
    shares = np.array([0.001, 0.05, 0.5, 0.999, 1.0])
    for of_magnitudes in (False, True):
        order = np.argsort(bits.low, kind="stable")
        low, high = (ends[order] for ends in (buckets.magnitudes_of(bits) if of_magnitudes else (bits.low, bits.high)))
        then = np.argsort(low, kind="stable")
        counts, exponent = bits.counts[order][then], bits.exponent[order][then]
        whole = buckets.BitRows(1, np.zeros(len(low), np.int64), low[then], high[then], counts, exponent)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = buckets.quantiles(whole, np.array([zeros]), shares)[0]
            found = buckets.pooled_quantiles(bits, zeros, shares, of_magnitudes=of_magnitudes)
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
