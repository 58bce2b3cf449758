"""One number over the steps: exact where it fits, and no spike lost where it does not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from layerscope.model.records import Ints
from layerscope.views.scalar import Screen, columns, scalar_view, smoothed


def test_values_of_tensors_that_hold_nan_are_marked_though_they_are_numbers() -> None:
    broken = np.array([False, True, False, False, True, False])
    view = scalar_view("rms", np.arange(6), np.ones(6), Screen(), broken=broken)
    assert view.not_finite.tolist() == [0, 1, 0, 0, 1, 0]
    assert view.low.tolist() == [1.0] * 6
    thin = scalar_view("rms", np.arange(6), np.ones(6), Screen(width=2, first=1), broken=broken)
    assert thin.not_finite.tolist() == [1, 1]


def test_values_that_fit_are_shown_as_they_are() -> None:
    values = np.array([3.0, 1.0, 2.0])
    view = scalar_view("loss", np.array([0, 10, 20]), values, Screen(width=3))
    assert not view.thinned
    assert view.last_steps.tolist() == view.first_steps.tolist() == [0, 10, 20]
    assert view.low.tolist() == view.high.tolist() == view.last.tolist() == values.tolist()


def test_a_spike_of_one_step_among_many_is_kept() -> None:
    values = np.sin(np.arange(100_000) / 1e3)
    values[77_777] = 50.0
    values[12_345] = -50.0
    view = scalar_view("loss", np.arange(100_000), values, Screen(width=300))
    assert view.thinned
    assert len(view.last) == 300
    assert view.points == 100_000
    assert (view.high.max(), view.low.min()) == (50.0, -50.0)


def test_undefined_values_are_counted_and_leave_a_gap() -> None:
    values = np.array([1.0, np.nan, np.inf, 4.0])
    view = scalar_view("loss", np.arange(4), values, Screen(width=2))
    assert view.not_finite.tolist() == [1, 1]
    assert view.low.tolist() == view.high.tolist() == [1.0, 4.0]
    assert np.isnan(view.last[0])
    assert view.last[1] == 4.0
    assert scalar_view("loss", np.arange(1), np.array([-np.inf]), Screen()).last.tolist() == [-np.inf]


def test_no_steps_give_an_empty_view() -> None:
    view = scalar_view("loss", np.zeros(0, np.int64), np.zeros(0), Screen())
    assert (view.points, len(view.last), view.thinned) == (0, 0, False)


@given(st.lists(st.integers(-(2**40), 2**40), max_size=80).map(sorted), st.integers(1, 40))
def test_columns_hold_all_rows_in_order_and_never_overlap(steps: list[int], width: int) -> None:
    rows: Ints = np.array(steps, np.int64)
    grouped = columns(rows, width)
    assert len(grouped) <= width
    assert len(grouped.of_row) == len(rows)
    assert (np.diff(grouped.of_row) >= 0).all()
    assert (grouped.left <= grouped.first_steps).all()
    assert (grouped.right >= grouped.last_steps).all()
    assert (grouped.right[:-1] <= grouped.left[1:]).all()


def test_columns_do_not_touch_over_a_long_pause() -> None:
    grouped = columns(np.array([0, 1, 2, 3, 100, 101]), 50)
    assert grouped.right[3] < 10
    assert grouped.left[4] > 90


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
def test_the_smoothed_curve_is_the_weighted_mean_of_what_was_before(values: list[float], weight: float) -> None:
    curve = smoothed(np.array(values), weight)
    for at in range(len(values)):
        weights = weight ** np.arange(at, -1, -1.0)
        expected = np.average(values[: at + 1], weights=weights)
        np.testing.assert_allclose(curve[at], expected, rtol=1e-6, atol=1e-6 * max(map(abs, values)))


def test_a_smoothed_curve_begins_the_same_wherever_the_picture_begins() -> None:
    steps, values = np.arange(1000), np.sin(np.arange(1000) / 9)
    whole = scalar_view("loss", steps, values, Screen(width=1000, smooth=0.9))
    part = scalar_view("loss", steps, values, Screen(width=1000, first=500, smooth=0.9))
    np.testing.assert_array_equal(part.smooth, whole.smooth[500:])
    assert len(scalar_view("loss", steps, values, Screen()).smooth) == 0
