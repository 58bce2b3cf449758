"""Histograms over time say of known tensors what numpy says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from layerscope.model.records import Floats
from layerscope.views.histogram import SHARES, histogram_view
from layerscope.views.scalar import Screen
from layerscope.views.scales import AxisKind
from tests.views.histories import history_of

AXES = list(AxisKind)


def normal(seed: int, size: int = 20_000) -> Floats:
    return np.random.default_rng(seed).normal(0.0, 1.0 + 0.1 * seed, size)


@pytest.mark.parametrize("axis", AXES)
def test_every_element_is_counted_once(axis: AxisKind) -> None:
    tensors = {step: np.append(normal(step, 1000), [0.0, 0.0, 1e4, np.nan, np.inf, -np.inf]) for step in range(7)}
    view = histogram_view(history_of(tensors), axis, Screen(width=100, height=40))
    assert len(view.edges) == len(view.counts) // 7 + 1
    in_bins = view.counts.reshape(7, -1).sum(axis=1) + view.below + view.above
    zeros = view.zeros if axis is AxisKind.EXPONENT else 0.0
    np.testing.assert_allclose(in_bins + zeros, 1003, rtol=1e-5)
    assert view.nan.tolist() == view.pos_inf.tolist() == view.neg_inf.tolist() == [1.0] * 7
    assert view.total.tolist() == [1006.0] * 7


@pytest.mark.parametrize("axis", AXES)
def test_a_bin_with_anything_in_it_has_a_shade_and_fuller_bins_no_lower_one(axis: AxisKind) -> None:
    tensors = {step: np.append(normal(step, 10**step), np.zeros(step)) for step in range(6)}
    view = histogram_view(history_of(tensors), axis, Screen(width=3, height=40))
    means = view.counts.reshape(len(view.left), -1) / view.summaries[:, None]
    assert view.most == pytest.approx(means.max())
    order = np.argsort(means.ravel())
    assert ((means.ravel() > 0) == (view.shades > 0)).all()
    assert (np.diff(view.shades[order].astype(int)) >= 0).all()
    assert view.shades.max() == 255
    filled = means.ravel()[view.shades > 0]
    expected = 1 + 255 * np.log1p(filled) / np.log1p(view.most)
    np.testing.assert_allclose(view.shades[view.shades > 0], expected, atol=1.01)
    zeros = np.minimum(1 + 255 * np.log1p(view.zeros / view.summaries) / np.log1p(view.most), 255)
    np.testing.assert_allclose(view.zero_shades, np.where(view.zeros > 0, zeros, 0), atol=1.01)


def test_counts_of_a_linear_axis_are_close_to_numpys() -> None:
    tensor = normal(0)
    view = histogram_view(history_of({0: tensor}), AxisKind.LINEAR, Screen(height=64))
    expected, _ = np.histogram(tensor, view.edges)
    assert np.abs(view.counts - expected).sum() / 2 < 0.02 * len(tensor)


def test_counts_of_the_exponent_axis_are_exact() -> None:
    tensor = normal(0)
    view = histogram_view(history_of({0: tensor}), AxisKind.EXPONENT, Screen(height=200))
    expected, _ = np.histogram(np.abs(tensor), view.edges)
    inner = slice(8, -9)  # the outermost buckets are cut to the true extremes
    np.testing.assert_allclose(view.counts[inner], expected[inner], atol=1e-3)


@pytest.mark.parametrize("axis", [AxisKind.LINEAR, AxisKind.SYMLOG])
def test_quantiles_are_known_to_the_bucket(axis: AxisKind) -> None:
    tensors = {step: normal(step) for step in range(4)}
    view = histogram_view(history_of(tensors), axis, Screen())
    expected = np.stack([np.quantile(tensor, SHARES) for tensor in tensors.values()])
    np.testing.assert_allclose(view.quantiles.reshape(4, -1), expected, rtol=0.13, atol=0.02)


def test_of_many_steps_one_is_shown_of_each_stride() -> None:
    tensors = {step: normal(step, 300) for step in (0, 3, 5, 10, 11, 26, 30)}
    whole, thin = history_of(tensors), history_of({step: tensors[step] for step in (0, 5, 10, 26, 30)})
    for axis in AXES:
        view, expected = (histogram_view(history, axis, Screen()) for history in (whole.thinned(5), thin))
        assert view.last_steps.tolist() == [0, 5, 10, 26, 30]
        np.testing.assert_array_equal(view.counts, expected.counts)
        np.testing.assert_array_equal(view.smallest, expected.smallest)
    assert whole.thinned(1) is whole
    assert len(whole.thinned(1000).steps) == 1
    part = replace(whole, bits=whole.bits.take(np.arange(2, 7)))  # as read from the middle of a file
    assert part.bits.take(np.array([1])).encoded.tolist() == whole.bits.take(np.array([3])).encoded.tolist()


def test_steps_that_share_a_column_add_up() -> None:
    tensors = {step: normal(step, 500) for step in range(100)}
    view = histogram_view(history_of(tensors), AxisKind.LINEAR, Screen(width=10, height=32))
    assert view.first_steps.tolist() == list(range(0, 100, 10))
    assert view.summaries.tolist() == [10] * 10
    together = histogram_view(
        history_of({0: np.concatenate([tensors[step] for step in range(10)])}), AxisKind.LINEAR, Screen(height=32)
    )
    np.testing.assert_allclose(view.quantiles.reshape(10, -1)[0], together.quantiles, rtol=0.13, atol=0.03)
    lowest = [min(tensors[step].min() for step in range(at, at + 10)) for at in range(0, 100, 10)]
    np.testing.assert_allclose(view.smallest, lowest)


def test_one_outlier_does_not_squash_the_axis_and_is_counted_above_it() -> None:
    tensor = np.append(normal(0), 1e6)
    view = histogram_view(history_of({0: tensor}), AxisKind.LINEAR, Screen())
    assert view.edges[-1] < 10
    assert view.above.tolist() == [1.0]
    assert view.largest.tolist() == [1e6]


def test_zero_is_shown_when_it_is_near_and_not_when_it_is_far() -> None:
    near = histogram_view(history_of({0: np.linspace(0.1, 1.0, 1000)}), AxisKind.LINEAR, Screen())
    far = histogram_view(history_of({0: np.linspace(10.0, 11.0, 1000)}), AxisKind.LINEAR, Screen())
    assert near.edges[0] == 0.0
    assert far.edges[0] > 9.9


def test_zeros_that_lie_off_the_axis_are_counted_below_it() -> None:
    view = histogram_view(
        history_of({0: np.append(np.random.default_rng(0).uniform(100, 101, 10_000), [0.0] * 3)}),
        AxisKind.LINEAR,
        Screen(),
    )
    assert view.below.tolist() == [3.0]


def test_a_bin_with_one_element_differs_from_an_empty_one() -> None:
    view = histogram_view(history_of({0: np.array([-1.0, 1.0])}), AxisKind.LINEAR, Screen(height=16))
    assert np.count_nonzero(view.counts) == 2
    assert view.counts.max() == pytest.approx(1.0)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    "tensor",
    [np.zeros(10), np.full(10, 0.7), np.full(5, -3e300), np.array([]), np.full(4, np.nan), np.array([5e-324, 1.7e308])],
    ids=["zeros", "constant", "huge", "empty", "nan", "whole range"],
)
def test_odd_tensors_have_an_axis_too(axis: AxisKind, tensor: Floats) -> None:
    view = histogram_view(history_of({3: tensor}), axis, Screen(height=16))
    assert np.isfinite(view.edges).all()
    assert (np.diff(view.edges) > 0).all()
    zeros = view.zeros.sum() if axis is AxisKind.EXPONENT else 0.0
    counted = view.counts.sum() + view.below.sum() + view.above.sum() + zeros
    assert counted == pytest.approx(np.isfinite(tensor).sum(), rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(allow_nan=True, allow_infinity=True, width=64)),
    st.sampled_from(AXES),
)
def test_any_tensor_is_counted_whole(tensor: Floats, axis: AxisKind) -> None:
    view = histogram_view(history_of({0: tensor}), axis, Screen(height=24))
    assert (np.diff(view.edges) > 0).all()
    zeros = view.zeros.sum() if axis is AxisKind.EXPONENT else 0.0
    counted = view.counts.sum() + view.below.sum() + view.above.sum() + zeros
    assert counted == pytest.approx(np.isfinite(tensor).sum(), abs=1e-3)
    assert ((view.ticks >= view.edges[0]) & (view.ticks <= view.edges[-1])).all()


def test_a_few_tiny_values_do_not_stretch_the_exponent_axis() -> None:
    spread = np.exp2(-np.random.default_rng(0).uniform(0, 10, 980))
    view = histogram_view(
        history_of({0: np.append(spread, np.exp2(-np.linspace(20, 140, 20)))}), AxisKind.EXPONENT, Screen()
    )
    assert np.log2(view.edges[0]) >= -20
    assert view.below.sum() > 0
    assert np.log2(view.ticks).tolist() == [-10, -8, -6, -4, -2, 0]
    narrow = histogram_view(history_of({0: normal(0)}), AxisKind.EXPONENT, Screen())
    assert narrow.below.sum() <= 0.001 * narrow.total.sum()


def test_a_part_of_the_training_is_cut_out() -> None:
    tensors = {step: normal(step, 200) for step in range(0, 50, 5)}
    view = histogram_view(history_of(tensors), AxisKind.LINEAR, Screen(first=11, last=30))
    assert view.last_steps.tolist() == [10, 15, 20, 25, 30]  # a crosshair at 11 to 14 reads step 10
    assert histogram_view(history_of(tensors), AxisKind.LINEAR, Screen(first=15)).first_steps[0] == 15
    assert histogram_view(history_of(tensors), AxisKind.LINEAR, Screen(first=11, last=14)).points == 0
    nothing = histogram_view(history_of(tensors), AxisKind.LINEAR, Screen(first=90))
    assert nothing.points == 0
    assert len(nothing.counts) == 0


def test_the_exponent_axis_begins_where_there_is_something() -> None:
    tensor = np.append(np.full(60, 2.0**-75), normal(0, 1000))  # more than the share that is left out
    view = histogram_view(history_of({0: tensor}), AxisKind.EXPONENT, Screen(height=200))
    assert view.edges[0] == 2.0**-75


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("others", [[5.5, 6.0], [-2.0], [1e-30], [3.0, -3.0]])
@pytest.mark.parametrize("zeros", [1, 10, 100_000])
def test_zeros_that_are_no_outliers_are_on_the_axis(axis: AxisKind, others: list[float], zeros: int) -> None:
    view = histogram_view(history_of({0: np.append(np.zeros(zeros), others)}), axis, Screen())
    assert (np.diff(view.edges) > 0).all()
    assert view.zeros.tolist() == [zeros]
    if axis is not AxisKind.EXPONENT:
        assert view.edges[0] <= 0.0 <= view.edges[-1]
        assert view.counts.sum() >= zeros * 0.999


def test_a_single_zero_far_from_all_else_does_not_stretch_the_linear_axis() -> None:
    tensor = np.append(np.random.default_rng(0).uniform(5, 6, 100_000), 0.0)
    view = histogram_view(history_of({0: tensor}), AxisKind.LINEAR, Screen())
    assert view.edges[0] > 4.9
    assert view.below.tolist() == [1.0]


def test_subnormal_numbers_alone_have_an_exponent_axis() -> None:
    view = histogram_view(history_of({0: np.array([5e-324])}), AxisKind.EXPONENT, Screen())
    assert (np.diff(view.edges) > 0).all()
