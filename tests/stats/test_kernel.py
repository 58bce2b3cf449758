"""The compiled kernel and the numpy path give what the reference says, in any state of the process."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.model import summary_spec
from layerscope.model.number_formats import BYTES, STORED, WORDS
from layerscope.stats import kernel
from layerscope.stats.kernel import RowArena
from tests.stats.arrays import (
    FLOATING,
    Stored,
    arrays,
    assert_same_summary,
    expected,
    load,
    store,
    summary_by,
)

SOURCE = Path(kernel.__file__).with_name("_kernel.c")
FORMATS = pytest.mark.parametrize("dtype", STORED)


@pytest.fixture(params=["compiled", "portable", "numpy"], scope="module")
def arena(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> kernel.Arena:
    """An arena over each implementation: as installed, as other processors run it, and without a compiler."""
    arena = kernel.Arena()
    if request.param == "numpy":
        arena._summarize = kernel._summarize_by_numpy
    elif not kernel.COMPILED:
        pytest.skip("the kernel is not compiled: install with a C compiler to test it")
    elif request.param == "portable":
        arena._summarize = compile_portable(tmp_path_factory.mktemp("portable"))
    return arena


def compile_portable(folder: Path) -> kernel._Summarize:
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        pytest.skip("no C compiler: the portable path of the kernel is not tested")
    library = folder / "_kernel.abi3.so"
    flags = ["-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-DPORTABLE", "-DWITHOUT_THREADS"]
    flags += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    include = f"-I{sysconfig.get_paths()['include']}"
    subprocess.run([compiler, *flags, include, str(SOURCE), "-o", str(library), "-lm"], check=True)
    loader = ExtensionFileLoader("_kernel", str(library))
    found = importlib.util.spec_from_file_location("_kernel", library, loader=loader)
    assert found is not None
    module = importlib.util.module_from_spec(found)
    loader.exec_module(module)
    summarize: kernel._Summarize = module.summarize
    return summarize


@FORMATS
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_summaries_equal_the_reference(arena: kernel.Arena, dtype: str, data: st.DataObject) -> None:
    stored = data.draw(arrays(dtype))
    assert_same_summary(summary_by(arena, stored, dtype), expected(stored, dtype), load(stored, dtype))


@FORMATS
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_encoded_bytes_are_those_of_the_specification(arena: kernel.Arena, dtype: str, data: st.DataObject) -> None:
    stored = data.draw(arrays(dtype))
    arena.add(stored.ctypes.data, stored.size, kernel.format_number(dtype))
    assert arena.drain().bits.tobytes() == summary_spec.encode(expected(stored, dtype).bits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_block_of_zeros_beside_one_of_subnormals_is_counted(arena: kernel.Arena, dtype: str, order: int) -> None:
    tiny = np.full(5000, summary_spec.SMALLEST_NORMAL[dtype] / 16)
    stored = store(np.concatenate((np.zeros(5000), -tiny, tiny)[::order]), dtype)
    assert_same_summary(summary_by(arena, stored, dtype), expected(stored, dtype), load(stored, dtype))


@given(values=st.lists(st.floats(width=32), max_size=20))
@settings(max_examples=200, deadline=None)
def test_any_handful_of_float32_is_summarized_right(arena: kernel.Arena, values: list[float]) -> None:
    stored = np.array(values, np.float32)
    assert_same_summary(summary_by(arena, stored, "float32"), expected(stored, "float32"), stored.astype(np.float64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_bit_pattern_of_a_half_format_is_read_right(arena: kernel.Arena, dtype: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    stored = every if dtype == "bfloat16" else every.view(np.float16)
    assert_same_summary(summary_by(arena, stored, dtype), expected(stored, dtype), load(stored, dtype))
    for one in stored[::97]:
        single = np.array([one])
        assert_same_summary(summary_by(arena, single, dtype), expected(single, dtype), load(single, dtype))


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("value", [0.0, -0.0, np.nan, np.inf, -np.inf])
def test_a_tensor_of_one_special_value_has_no_buckets(arena: kernel.Arena, dtype: str, value: float) -> None:
    summary = summary_by(arena, store(np.full(3000, value), dtype), dtype)
    assert len(summary.bits.codes) == 0
    named = dict(zip(summary_spec.MOMENTS, summary.moments, strict=True))
    assert named["count"] == 3000
    assert named["zeros"] == (3000 if value == 0 else 0)
    assert named["nan"] == (3000 if np.isnan(value) else 0)
    assert named["pos_inf"] == (3000 if value == np.inf else 0)
    assert named["neg_inf"] == (3000 if value == -np.inf else 0)
    assert np.isnan(named["abs_min"])


@pytest.mark.parametrize(
    ("dtype", "values", "subnormal"),
    [
        ("float32", [2.0**-126, 2.0**-127, -(2.0**-149), 1.0], 2),
        ("float64", [2.0**-1022, 2.0**-1023, -(2.0**-1074), 1e-40], 2),
        ("float16", [2.0**-14, 2.0**-15, -(2.0**-24), 1.0], 2),
        ("bfloat16", [2.0**-126, 2.0**-127, -(2.0**-133), 1.0], 2),
    ],
)
def test_subnormals_are_those_of_the_own_format(
    arena: kernel.Arena, dtype: str, values: list[float], subnormal: int
) -> None:
    summary = summary_by(arena, store(np.array(values), dtype), dtype)
    assert summary.moments[summary_spec.COLUMN["subnormal"]] == subnormal


def test_memory_at_odd_addresses_is_read_right(arena: kernel.Arena) -> None:
    for dtype in STORED:
        stored = store(np.random.default_rng(1).standard_normal(5000) * 50, dtype)
        shifted = np.empty(stored.nbytes + 1, np.uint8)
        shifted[1:] = stored.view(np.uint8)
        arena.add(shifted.ctypes.data + 1, stored.size, kernel.format_number(dtype))
        arena.add(stored.ctypes.data, stored.size, kernel.format_number(dtype))
        collected = arena.drain()
        np.testing.assert_array_equal(collected.moments[0], collected.moments[1])


def test_a_small_share_of_odd_numbers_does_not_disturb_the_others(arena: kernel.Arena) -> None:
    stored = np.random.default_rng(2).standard_normal(50_000).astype(np.float32)
    stored[[3, 2047, 2048, 30_000]] = [np.nan, 1e-40, -np.inf, 0.0]
    assert_same_summary(summary_by(arena, stored, "float32"), expected(stored, "float32"), stored.astype(np.float64))


def test_rows_keep_their_order_while_the_arena_grows(arena: kernel.Arena) -> None:
    rng = np.random.default_rng(3)
    parts = [rng.standard_normal(rng.integers(0, 30)).astype(np.float32) for _ in range(700)]
    wide = store(10.0 ** rng.uniform(-300, 300, 9000), "float64")
    rows = [arena.add(part.ctypes.data, part.size, kernel.format_number("float32")) for part in parts]
    rows += [arena.add(wide.ctypes.data, wide.size, kernel.format_number("float64")) for _ in range(40)]
    assert rows == list(range(740))
    assert len(arena) == 740
    collected = arena.drain()
    assert len(arena) == 0
    np.testing.assert_array_equal(collected.moments[:700, 0], [part.size for part in parts])
    last = collected.bits[collected.offsets[-2] : collected.offsets[-1]].tobytes()
    assert last == summary_spec.encode(expected(wide, "float64").bits)


def test_what_was_drained_is_never_written_again(arena: kernel.Arena) -> None:
    first, second = np.ones(100, np.float32), np.arange(5000, dtype=np.float32)
    arena.add(first.ctypes.data, first.size, kernel.format_number("float32"))
    collected = arena.drain()
    before = [part.copy() for part in collected]
    for _ in range(3):
        arena.add(second.ctypes.data, second.size, kernel.format_number("float32"))
        arena.drain()
    for part, copy in zip(collected, before, strict=True):
        np.testing.assert_array_equal(part, copy)


def test_threads_with_arenas_of_their_own_get_the_results_of_one_thread(arena: kernel.Arena) -> None:
    rng = np.random.default_rng(4)
    parts = [
        rng.standard_normal(n).astype(np.float32) for n in (10, 300_000, 1000, 400_000) * 3
    ]  # with and without GIL

    def summaries(_: int) -> list[bytes]:
        own = kernel.Arena()
        own._summarize = arena._summarize
        for part in parts:
            own.add(part.ctypes.data, part.size, kernel.format_number("float32"))
        return [part.tobytes() for part in own.drain()]

    alone = summaries(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(result == alone for result in pool.map(summaries, range(6)))


def test_threads_that_share_an_arena_get_rows_of_their_own(arena: kernel.Arena) -> None:
    parts = [np.full(n, float(n), np.float32) for n in range(300_000, 300_016)]

    def add(part: Stored) -> tuple[int, int]:
        return arena.add(part.ctypes.data, part.size, kernel.format_number("float32")), part.size

    with ThreadPoolExecutor(4) as pool:
        rows = dict(pool.map(add, parts))
    collected = arena.drain()
    assert sorted(rows) == list(range(16))
    assert all(collected.moments[row, summary_spec.COLUMN["max"]] == size for row, size in rows.items())


@pytest.mark.slow
def test_more_elements_than_a_32_bit_counter_holds_are_all_counted() -> None:
    if not kernel.COMPILED:
        pytest.skip("the kernel is not compiled, and numpy would need 32 GB")
    zeros = np.zeros((1 << 32) + 5, np.int8)  # never written: takes no memory
    arena = kernel.Arena()
    arena.add(zeros.ctypes.data, zeros.size, kernel.format_number("int8"))
    assert arena.drain().moments[0, summary_spec.COLUMN["zeros"]] == (1 << 32) + 5


FLUSHING = """
import numpy as np
def tiny(): return float(np.array([1e-40], np.float32)[0] * np.ones(1, np.float32)[0])
assert tiny() != 0
from layerscope.stats import kernel
x = np.array([1e-40, -3e-41, 1.0, np.nan] * 100_000, np.float32)
arena = kernel.Arena()
def summary():
    arena.add(x.ctypes.data, x.size, kernel.format_number("float32"), 3)
    return [part.tobytes() for part in arena.drain()]
before = summary()
assert tiny() != 0, "loading or running the kernel switched flush-to-zero on"
import torch
if not torch.set_flush_denormal(True): raise SystemExit("this processor cannot flush")
assert tiny() == 0
assert summary() == before, "flush-to-zero changed a summary"
assert tiny() == 0, "running the kernel switched flush-to-zero off"
"""


@pytest.mark.skipif(not kernel.COMPILED, reason="the kernel is not compiled")
def test_flush_to_zero_is_neither_changed_nor_obeyed() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FLUSHING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_integers_beyond_the_mantissa_of_float64_round(arena: kernel.Arena) -> None:
    signed = summary_by(arena, np.array([2**53 + 1, -(2**63)], np.int64), "int64")
    assert signed.moments[summary_spec.COLUMN["max"]] == 2.0**53
    assert signed.moments[summary_spec.COLUMN["min"]] == -(2.0**63)
    unsigned = summary_by(arena, np.array([2**53 + 1, 2**64 - 1], np.uint64), "uint64")
    assert unsigned.moments[summary_spec.COLUMN["min"]] == 2.0**53
    assert unsigned.moments[summary_spec.COLUMN["max"]] == 2.0**64


@pytest.mark.parametrize("dtype", BYTES)
def test_every_byte_is_read_right_alone_and_with_all_others(arena: kernel.Arena, dtype: str) -> None:
    every = np.arange(256, dtype=np.uint8)
    for stored in (every, np.repeat(every, 100), *every[::5, None]):
        view = stored.view(bool if dtype == "bool" else "int8" if dtype == "int8" else "uint8")
        assert_same_summary(summary_by(arena, view, dtype), expected(view, dtype), load(view, dtype))


def test_wrong_arguments_of_the_kernel_raise() -> None:
    if not kernel.COMPILED:
        pytest.skip("the kernel is not compiled")
    with pytest.raises(ValueError, match="format 99"):
        kernel.Arena().add(0, 1, 99)
    with pytest.raises(ValueError, match="-1 elements"):
        kernel.Arena().add(0, -1, 0)


@pytest.mark.skipif(not kernel.COMPILED, reason="the kernel is not compiled")
def test_one_look_gives_what_several_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_FIRST_ROWS", 2)  # so that the arena grows
    together, apart, rows = kernel.Arena(), kernel.Arena(), RowArena()
    for dtype in WORDS:
        stored = np.random.default_rng(0).integers(0, 100, 600).astype("uint16" if dtype == "bfloat16" else dtype)
        address, count, number = stored.ctypes.data, stored.size, kernel.format_number(dtype)
        before, _ = rows.add(address, count, number, 12)
        first, batch, *at = rows.reserve(12)
        copy = np.zeros_like(stored)
        row = together.take([address, count, number], 1, 12, *at, copy.ctypes.data, 7 * stored.itemsize)
        assert row == apart.add(address, count, number)
        assert copy.tolist() == [*stored[:7], *np.zeros(593)]
        np.testing.assert_array_equal(rows.numbers[first : first + 12], rows.numbers[before : before + 12])
        np.testing.assert_array_equal(rows.over[batch], rows.over[batch - 1])
    for one, other in zip(together.drain(), apart.drain(), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="bytes"):
        together.take([copy.ctypes.data, 4, kernel.format_number("int8")], 1, 2, 0, 0, 0, 0)


def test_the_reference_reads_strided_arrays() -> None:
    values = np.random.default_rng(5).standard_normal((40, 50))
    strided = kernel.summarize(values[::2, ::-3], 0.0)
    np.testing.assert_array_equal(strided.moments, kernel.summarize(values[::2, ::-3].copy(), 0.0).moments)
