"""What is derived from bit-counts, against the values that were counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.model import summary_spec
from layerscope.model.records import Floats
from layerscope.stats import derived, kernel
from tests.stats.arrays import NORMAL, arrays, load

SHARES = np.array([0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0])


def stored_rows(values: list[Floats]) -> derived.EncodedRows:
    """The bit-counts of several arrays as they are stored."""
    summaries = [kernel.summarize(v, summary_spec.SMALLEST_NORMAL["float64"]) for v in values]
    encoded = [summary_spec.encode(summary.bits) for summary in summaries]
    moments = np.stack([summary.moments for summary in summaries])
    return derived.EncodedRows(
        np.array([summary.bits.m for summary in summaries], np.uint8),
        np.cumsum([0, *map(len, encoded)]),
        np.frombuffer(b"".join(encoded), np.uint8),
        np.ascontiguousarray(moments[:, summary_spec.COLUMN["min"]]),
        np.ascontiguousarray(moments[:, summary_spec.COLUMN["max"]]),
    )


def rows_of(values: list[Floats]) -> derived.BitRows:
    """Decoded bit-counts of several arrays, clipped to their extremes."""
    return stored_rows(values).decoded()


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
        totals = derived.histogram(rows_of(values), edges).sum(axis=1)
        np.testing.assert_allclose(totals, [np.count_nonzero(v) for v in finite], rtol=1e-12)


def test_a_histogram_is_close_to_the_true_one() -> None:
    values = [NORMAL, np.abs(NORMAL), 100 + NORMAL]
    bits = rows_of(values)
    for row, raw in enumerate(values):
        edges = np.linspace(raw.min(), raw.max(), 65)
        true, _ = np.histogram(raw, edges)
        assert np.abs(derived.histogram(bits, edges)[row] - true).sum() / 2 / raw.size < 0.02


def test_a_histogram_with_edges_on_bucket_bounds_is_exact() -> None:
    edges = np.array([-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0])
    true, _ = np.histogram(NORMAL, edges)
    got = derived.histogram(rows_of([NORMAL]), edges)[0]
    np.testing.assert_allclose(got, true, atol=1e-9)


@pytest.mark.parametrize("constant", [-2.0, -1.0, 0.5, 1.0, 2.0, 3.0])
def test_a_constant_falls_into_the_bin_numpy_puts_it_in(constant: float) -> None:
    edges, values = np.array([-2.0, -1.0, 0.5, 2.0]), np.full(9, constant)
    np.testing.assert_array_equal(derived.histogram(rows_of([values]), edges)[0], np.histogram(values, edges)[0])


def test_rows_do_not_disturb_each_other() -> None:
    values = [NORMAL, np.zeros(0), 100 + NORMAL[:50], np.zeros(4), np.array([3.0]), -np.abs(NORMAL)]
    edges = np.linspace(-3, 120, 40)
    together = rows_of(values)
    zeros = np.array([np.count_nonzero(raw == 0) for raw in values], np.float64)
    below, wanted = derived.histogram(together, edges), derived.quantiles(together, zeros, SHARES)
    exponents, counts = derived.exponents(together)
    for row, raw in enumerate(values):
        alone = rows_of([raw])
        np.testing.assert_allclose(below[row], derived.histogram(alone, edges)[0], rtol=1e-12)
        np.testing.assert_allclose(wanted[row], derived.quantiles(alone, zeros[row : row + 1], SHARES)[0], rtol=1e-12)
        own, own_counts = derived.exponents(alone)
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
        assert np.isnan(derived.quantiles(bits, zeros, SHARES)).all()
        return
    got = derived.quantiles(bits, zeros, SHARES)[0]
    true = finite[np.maximum(np.ceil(SHARES * len(finite)).astype(int) - 1, 0)]  # first with the share at or below it
    for estimate, value in zip(got, true, strict=True):
        inside = (bits.low <= value) & (value <= bits.high) if value else np.zeros(len(bits.low), bool)
        assert estimate == value or ((bits.low <= estimate) & (estimate <= bits.high) & inside).any()


def test_exponents_are_the_exact_marginal() -> None:
    values = np.concatenate((NORMAL, [2.0**-1074, -(2.0**-1030), 1e300, 0.0, np.nan]))
    present, counts = derived.exponents(rows_of([values]))
    nonzero = np.abs(values[np.isfinite(values) & (values != 0)])
    wanted, wanted_counts = np.unique(np.frexp(nonzero)[1] - 1, return_counts=True)
    np.testing.assert_array_equal(present, wanted)
    np.testing.assert_array_equal(counts[0], wanted_counts)


def test_no_rows_and_empty_rows_have_empty_results() -> None:
    for values in ([np.zeros(0)], [np.zeros(3), np.full(2, np.nan)]):
        bits, rows = rows_of(values), len(values)
        assert derived.histogram(bits, np.linspace(-1, 1, 5)).tolist() == [[0.0] * 4] * rows
        assert derived.exponents(bits)[1].shape == (rows, 0)
    none = derived.decode_bits(np.zeros(0, np.uint8), np.zeros(1, np.int64), np.zeros(0, np.uint8))
    assert derived.histogram(none, np.linspace(-1, 1, 5)).shape == (0, 4)
    assert derived.quantiles(none, np.zeros(0), SHARES).shape == (0, len(SHARES))


def assert_same(bits: derived.BitRows, plain: derived.BitRows) -> None:
    assert bits.rows == plain.rows
    for column, wanted in zip(bits.columns, plain.columns, strict=True):
        np.testing.assert_array_equal(column, wanted, strict=True)


@pytest.mark.skipif(derived.kernel is None, reason="there is no compiled kernel to compare with numpy")
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
        patch.setattr(derived, "kernel", None)
        plain = stored.decoded(starts)
        below, quantiles = derived.cumulative(plain, edges), derived.quantiles(plain, zeros, SHARES)
    assert_same(bits, plain)
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_allclose(derived.cumulative(bits, edges), below, rtol=1e-14)
        np.testing.assert_allclose(derived.quantiles(bits, zeros, SHARES), quantiles, rtol=1e-14)


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
        low, high = (ends[order] for ends in (derived.magnitudes_of(bits) if of_magnitudes else (bits.low, bits.high)))
        then = np.argsort(low, kind="stable")
        counts, exponent = bits.counts[order][then], bits.exponent[order][then]
        whole = derived.BitRows(1, np.zeros(len(low), np.int64), low[then], high[then], counts, exponent)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = derived.quantiles(whole, np.array([zeros]), shares)[0]
            found = derived.pooled_quantiles(bits, zeros, shares, of_magnitudes=of_magnitudes)
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
