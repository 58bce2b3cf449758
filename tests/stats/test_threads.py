"""Several threads on one tensor, several tensors in one call: the same summaries, whatever happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.model.number_formats import STORED
from layerscope.model.records import Floats
from layerscope.stats import kernel
from layerscope.stats.merging import Encoded
from tests.stats.arrays import Stored, arrays, assert_same_summary, expected, load, store, summary_by

pytestmark = pytest.mark.skipif(not kernel.COMPILED, reason="the kernel is not compiled")
SIZES = (kernel.LARGE - 1, kernel.LARGE, kernel.LARGE + 1, 4 * kernel.LARGE + 4321)
SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "normal": lambda normal: normal,
    "narrow": lambda normal: 100.0 + 0.01 * normal,
    "two signs, narrow": lambda normal: np.sign(normal) + 0.001 * normal,
    "odd": lambda normal: np.where(np.abs(normal) > 3.5, np.nan, normal * 1e-38),
}


def collected(stored: Stored, dtype: str, threads: int) -> list[bytes]:
    arena = kernel.Arena()
    arena.add(stored.ctypes.data, stored.size, kernel.format_number(dtype), threads)
    return [part.tobytes() for part in arena.drain()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32", "uint8", "float8_e4m3fn"])
def test_a_summary_is_the_same_to_the_bit_for_any_number_of_threads(dtype: str, shape: str) -> None:
    rng = np.random.default_rng(0)
    for size in SIZES:
        stored = store(SHAPES[shape](rng.standard_normal(size)), dtype)
        alone = collected(stored, dtype, 1)
        assert all(collected(stored, dtype, threads) == alone for threads in (2, 3, 5, 1000))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_summary_by_threads_equals_the_reference(shape: str) -> None:
    values = SHAPES[shape](np.random.default_rng(1).standard_normal(SIZES[-1])).astype(np.float32)
    assert_same_summary(
        summary_by(kernel.Arena(), values, "float32", 3), expected(values, "float32"), values.astype(np.float64)
    )


def run(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SUBJECT = """
import os, time, numpy as np
from layerscope.stats import kernel
x = np.random.default_rng(2).standard_normal(1_000_000).astype(np.float32)
arena = kernel.Arena()
def summary(threads):
    arena.add(x.ctypes.data, x.size, kernel.format_number("float32"), threads)
    return [part.tobytes() for part in arena.drain()]
alone = summary(1)
"""

NO_ROOM = """
import resource
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for room in (4_000_000, 0):  # for tables, but not for a thread's stack; for nothing
    resource.setrlimit(resource.RLIMIT_AS, (taken + room, resource.RLIM_INFINITY))
    assert summary(4) == alone
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's memory")
def test_a_system_that_gives_no_thread_gets_the_work_done_alone() -> None:
    run(SUBJECT + NO_ROOM)


FORKED = """
tasks = lambda: len(os.listdir("/proc/self/task"))
before = tasks()
assert summary(4) == alone
until = time.monotonic() + 60  # a thread that was never needed may still be about to end
while tasks() > before:
    assert time.monotonic() < until, "a thread outlived the call"
child = os.fork()
if child == 0:
    os._exit(0 if summary(4) == alone else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_no_thread_outlives_a_call_and_a_forked_process_has_threads_of_its_own() -> None:
    run(SUBJECT + FORKED)


def rows_of(summaries: Encoded) -> list[tuple[bytes, int, bytes]]:
    moments, m, offsets, bits = summaries
    return [(row.tobytes(), int(m[i]), bits[offsets[i] : offsets[i + 1]].tobytes()) for i, row in enumerate(moments)]


def both_ways(tensors: list[tuple[Stored, str]]) -> tuple[Encoded, Encoded]:
    """Summaries of the tensors made one by one, and all in one call behind a first row."""
    arena, batch = kernel.Arena(), kernel.Arena()
    plan: list[int] = []
    for stored, dtype in tensors:
        place = (stored.ctypes.data, stored.size, kernel.format_number(dtype))
        arena.add(*place)
        plan += place
    batch.add_many([0, 0, 0])
    assert batch.add_many(plan) == 1
    assert len(batch) == 1 + len(tensors)
    return arena.drain(), batch.drain()


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_batch_has_the_summaries_of_its_tensors_in_order(data: st.DataObject) -> None:
    dtypes = data.draw(st.lists(st.sampled_from(STORED), max_size=12))
    apart, together = both_ways([(data.draw(arrays(dtype)), dtype) for dtype in dtypes])
    assert rows_of(together)[1:] == rows_of(apart)


def test_a_batch_may_be_larger_than_the_arena() -> None:
    rng = np.random.default_rng(3)
    wide = (store(10.0 ** rng.uniform(-300, 300, 9000), "float64"), "float64")
    few = (store(rng.standard_normal(5), "float32"), "float32")
    apart, together = both_ways([wide] * 60 + [few] * 900 + [wide] * 60)
    assert rows_of(together)[1:] == rows_of(apart)


def test_a_batch_with_a_wrong_entry_adds_nothing() -> None:
    arena, ones = kernel.Arena(), np.ones(10, np.float32)
    good = [ones.ctypes.data, ones.size, kernel.format_number("float32")]
    with pytest.raises(ValueError, match="format 99"):
        arena.add_many([*good, ones.ctypes.data, 1, 99])
    assert len(arena) == 0
    assert arena.add_many(good) == 0


def test_large_tensors_in_a_batch_are_read_right() -> None:
    large = store(np.random.default_rng(4).standard_normal(kernel.LARGE + 5), "float16")
    few = store(np.arange(20.0), "float16")
    arena = kernel.Arena()
    number = kernel.format_number("float16")
    arena.add_many([v for part in (few, large, few) for v in (part.ctypes.data, part.size, number)], 2)
    apart, _ = both_ways([(few, "float16"), (large, "float16"), (few, "float16")])
    assert rows_of(arena.drain()) == rows_of(apart)
    assert_same_summary(
        summary_by(kernel.Arena(), large, "float16", 2), expected(large, "float16"), load(large, "float16")
    )
