"""Codes, merging and the byte format of bit-counts."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.model import summary_spec
from layerscope.model.records import Floats
from layerscope.stats import kernel
from tests.stats.arrays import SUMS, arrays, assert_same_sums, expected, load

FINITE = st.floats(allow_nan=False, allow_infinity=False).filter(bool)


def summary(values: Floats) -> summary_spec.Summary:
    return kernel.summarize(values, summary_spec.SMALLEST_NORMAL["float64"])


def test_the_examples_in_the_docstrings_are_right() -> None:
    assert doctest.testmod(summary_spec).failed == 0


@given(value=FINITE, m=st.integers(0, 10))
def test_a_value_lies_inside_the_bounds_of_its_code(value: float, m: int) -> None:
    low, high = summary_spec.bounds_of(summary_spec.code_of(np.array([value]), m), m)
    assert low[0] <= value <= high[0]
    if abs(value) > 2.0**-1000:  # the smallest subnormals are wider apart than the bounds of their buckets
        assert value < high[0] if value > 0 else low[0] < value


@given(values=st.lists(FINITE, min_size=2, max_size=50))
def test_codes_sort_as_the_values_do(values: list[float]) -> None:
    ordered = np.sort(np.array(values))
    assert (np.diff(summary_spec.code_of(ordered, summary_spec.COARSE_M)) >= 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_merging_equals_summarizing_the_concatenation(dtype: str, data: st.DataObject) -> None:
    parts = [data.draw(arrays(dtype)) for _ in range(data.draw(st.integers(1, 3)))]
    together = np.concatenate(parts)
    merged, whole = summary_spec.merge(*(expected(part, dtype) for part in parts)), expected(together, dtype)
    m = min(merged.bits.m, whole.bits.m)
    left, right = summary_spec.fold(merged.bits, m), summary_spec.fold(whole.bits, m)
    np.testing.assert_array_equal(left.codes, right.codes)
    np.testing.assert_array_equal(left.counts, right.counts)
    np.testing.assert_array_equal(np.delete(merged.moments, SUMS), np.delete(whole.moments, SUMS))
    assert_same_sums(merged.moments, whole.moments, load(together, dtype))


def test_parts_of_different_resolution_merge_at_the_coarser() -> None:
    narrow, wide = np.linspace(100, 101, 50), np.geomspace(1e-3, 1e3, 1000)
    fine, coarse = summary(narrow), summary(wide)
    assert fine.bits.m > coarse.bits.m
    merged, whole = summary_spec.merge(fine, coarse), summary(np.concatenate((narrow, wide)))
    assert merged.bits.m == whole.bits.m == summary_spec.COARSE_M
    np.testing.assert_array_equal(merged.bits.codes, whole.bits.codes)
    np.testing.assert_array_equal(merged.bits.counts, whole.bits.counts)


@given(values=st.lists(FINITE, min_size=1, max_size=30), m=st.integers(0, 9))
def test_folding_equals_counting_with_fewer_bits(values: list[float], m: int) -> None:
    array = np.array(values)
    fine = summary_spec.count_codes(summary_spec.code_of(array, summary_spec.FINEST_M), summary_spec.FINEST_M)
    folded, direct = summary_spec.fold(fine, m), summary_spec.count_codes(summary_spec.code_of(array, m), m)
    np.testing.assert_array_equal(folded.codes, direct.codes)
    np.testing.assert_array_equal(folded.counts, direct.counts)


def test_counts_cannot_be_unfolded() -> None:
    with pytest.raises(ValueError, match="cannot be refined to 4"):
        summary_spec.fold(summary_spec.count_codes(summary_spec.code_of(np.ones(1), 3), 3), 4)


@pytest.mark.parametrize("center", [1.0, 100.0, -3e30, 1e-300])
def test_a_narrow_distribution_far_from_zero_is_counted_finely(center: float) -> None:
    values = center * (1 + 0.05 * np.random.default_rng(0).standard_normal(10_000))
    bits = summary(values).bits
    assert bits.m == summary_spec.FINEST_M
    assert len(bits.codes) > 100


def test_a_distribution_around_zero_is_counted_coarsely() -> None:
    assert summary(np.random.default_rng(0).standard_normal(1000)).bits.m == summary_spec.COARSE_M


@given(first=st.integers(-1074, 1023), second=st.integers(-1074, 1023))
def test_the_fine_resolution_fits_the_counters(first: int, second: int) -> None:
    low, high = sorted((first, second))
    m = summary_spec.fine_m(low, high)
    assert summary_spec.COARSE_M <= m <= summary_spec.FINEST_M
    assert (high - low + 1) << m <= summary_spec.FINE_COUNTERS
    assert m == summary_spec.FINEST_M or (high - low + 1) << (m + 1) > summary_spec.FINE_COUNTERS


BUCKETS = st.dictionaries(st.integers(-16791, 16791).filter(bool), st.integers(1, 2**62), max_size=40)


def bit_counts(buckets: dict[int, int]) -> summary_spec.BitCounts:
    codes = sorted(buckets)
    return summary_spec.BitCounts(3, np.array(codes, np.int32), np.array([buckets[code] for code in codes], np.int64))


@given(buckets=BUCKETS)
def test_decoding_gives_back_what_was_encoded(buckets: dict[int, int]) -> None:
    bits = bit_counts(buckets)
    again = summary_spec.decode(3, summary_spec.encode(bits))
    np.testing.assert_array_equal(again.codes, bits.codes)
    np.testing.assert_array_equal(again.counts, bits.counts)
    assert (again.codes.dtype.name, again.counts.dtype.name) == ("int32", "int64")


@given(rows=st.lists(st.tuples(BUCKETS, st.integers(3, 10)), max_size=6), ahead=st.integers(0, 9))
def test_many_rows_decode_as_each_alone(rows: list[tuple[dict[int, int], int]], ahead: int) -> None:
    encoded = [
        summary_spec.encode(summary_spec.BitCounts(m, b.codes, b.counts))
        for b, m in ((bit_counts(x), m) for x, m in rows)
    ]
    offsets = ahead + np.cumsum([0, *map(len, encoded)])  # as of rows cut out of a larger column
    data = np.frombuffer(b"".join(encoded) + b"\xff\x01", np.uint8)
    row, codes, counts = summary_spec.decode_rows(np.array([m for _, m in rows], np.uint8), offsets, data)
    for index, (buckets, _) in enumerate(rows):
        wanted = bit_counts(buckets)
        np.testing.assert_array_equal(codes[row == index], wanted.codes)
        np.testing.assert_array_equal(counts[row == index], wanted.counts)


def test_the_bytes_of_a_known_summary_do_not_change() -> None:
    bits = summary(np.array([1.0, 1.0, -1.0, *np.geomspace(1, 1e4, 12)])).bits
    assert bits.m == summary_spec.COARSE_M
    assert summary_spec.encode(bits)[:4] == bytes(
        [0x81, 0x40, 0xB0, 0x86]
    )  # gap to -8600 is 8193, gap to 8600 is 17200
