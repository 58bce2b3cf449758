from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from layerscope.model import summary_spec
from layerscope.model.records import Floats
from layerscope.stats import kernel, merging

ARRAYS = st.lists(st.lists(st.floats(allow_subnormal=False, width=32), max_size=20), min_size=1, max_size=6)


def encoded(arrays: list[Floats]) -> tuple[list[summary_spec.Summary], merging.Encoded]:
    summaries = [kernel.summarize(np.array(a, np.float64), 2.0**-126) for a in arrays]
    parts = [summary_spec.encode(s.bits) for s in summaries]
    return summaries, merging.Encoded(
        np.stack([s.moments for s in summaries]),
        np.array([s.bits.m for s in summaries], np.uint8),
        np.cumsum([0, *map(len, parts)]),
        np.frombuffer(b"".join(parts), np.uint8),
    )


def row(summaries: merging.Encoded, index: int) -> summary_spec.Summary:
    part = summaries.bits[summaries.offsets[index] : summaries.offsets[index + 1]].tobytes()
    return summary_spec.Summary(summaries.moments[index], summary_spec.decode(int(summaries.m[index]), part))


def assert_same(one: summary_spec.Summary, other: summary_spec.Summary) -> None:
    # Sums may be taken in another order: what cancels is compared with the size of what was added.
    moment = dict(zip(summary_spec.MOMENTS, one.moments, strict=True))
    added = {"sum": moment["sum_abs"], "sum3": np.sqrt(moment["sum2"] * moment["sum4"])}
    for name, its in zip(summary_spec.MOMENTS, other.moments, strict=True):
        slack = 1e-12 * float(np.nan_to_num(added.get(name, 0.0)))
        np.testing.assert_allclose(moment[name], its, rtol=1e-12, atol=slack, err_msg=name)
    assert one.bits.m == other.bits.m
    np.testing.assert_array_equal(one.bits.codes, other.bits.codes)
    np.testing.assert_array_equal(one.bits.counts, other.bits.counts)


@given(ARRAYS, st.data())
def test_adding_up_groups_is_merging_their_members(arrays: list[Floats], data: st.DataObject) -> None:
    summaries, rows = encoded(arrays)
    member = st.integers(0, len(arrays) - 1)
    groups = data.draw(st.lists(st.lists(member, min_size=1, max_size=4).map(tuple), min_size=1, max_size=4))
    added = merging.add_up(rows, groups)
    for index, group in enumerate(groups):
        assert_same(row(added, index), summary_spec.merge(*(summaries[i] for i in group)))


@given(ARRAYS, st.data())
def test_taking_rows_keeps_them_and_those_behind_are_empty(arrays: list[Floats], data: st.DataObject) -> None:
    summaries, rows = encoded(arrays)
    chosen = data.draw(st.lists(st.integers(0, len(arrays) - 1), max_size=6))
    more = data.draw(st.integers(0, 3))
    taken = merging.lengthened(merging.take(rows, np.array(chosen, np.int64)), more)
    assert len(taken.m) == len(chosen) + more
    for index, source in enumerate(chosen):
        assert_same(row(taken, index), summaries[source])
    for index in range(len(chosen), len(taken.m)):
        np.testing.assert_array_equal(taken.moments[index], kernel.summarize(np.zeros(0), 2.0**-126).moments)
        assert len(row(taken, index).bits.codes) == 0
