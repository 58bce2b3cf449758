"""Arrays of every stored type, with everything in them that can be in a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from layerscope.model import summary_spec
from layerscope.model.number_formats import BYTES
from layerscope.model.records import Floats
from layerscope.stats import kernel

Stored = npt.NDArray[Any]  # one of formats.STORED; bfloat16 as uint16, what numpy lacks of one byte as uint8
FLOATING = ("float32", "float64", "bfloat16", "float16")
ONLY_BYTES = tuple(dtype for dtype in BYTES if dtype.startswith("float"))
SIZES = (0, 1, 2, 7, 8, 9, 64, 1000, 2047, 2048, 2049, 5000)  # around the kernel's blocks
SUMS = slice(len(summary_spec.COUNTS), summary_spec.ADDED)
POWERS = (1, 1, 2, 3, 4, 8)  # of the moments in SUMS
SUM_TOLERANCE = 1e-12  # of the sum of the magnitudes
NORMAL: Floats = np.random.default_rng(0).standard_normal(20_000) * 0.3 + 0.1

_SPECIAL = {
    "float32": [3e38, -3e38, 1e-40, -1e-45, 1.1754944e-38],
    "float64": [1e300, -1e300, 1e-310, -5e-324, 2.0**-1022, 1.7976931348623157e308],
    "bfloat16": [3e38, -3e38, 1e-39, -1e-40, 2.0**-126],
    "float16": [65504.0, -65504.0, 6e-8, -3e-5, 2.0**-14],
}


def store(values: Floats, dtype: str) -> Stored:
    """The values in the type's own bits, rounded or cut off as need be."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in ONLY_BYTES:
            return values.astype(np.int64).astype(np.uint8)  # any bytes do
        if dtype == "bfloat16":
            return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return values.astype(dtype)


def load(stored: Stored, dtype: str) -> Floats:
    """The stored elements as float64."""
    if dtype.endswith("_x2"):
        stored = np.concatenate((stored & 15, stored >> 4))
    if dtype in ONLY_BYTES:
        return BYTES[dtype][stored]
    if dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):
        return stored.astype(np.float64)


@st.composite
def arrays(draw: st.DrawFn, dtype: str) -> Stored:
    """Elements of one type: any bits, a distribution, few values, each perhaps with special ones strewn in."""
    size = draw(st.sampled_from(SIZES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    style = draw(st.sampled_from(("bits", "normal", "narrow", "few", "constant", "half zero")))
    if style == "bits" or dtype not in FLOATING:
        raw = _any_bits(rng, size, dtype)
        integers = dtype not in FLOATING and dtype != "bool"
        return raw >> draw(st.integers(0, 8 * raw.itemsize - 4)) if integers else raw
    values = _styled(style, rng, size) * 10.0 ** draw(
        st.integers(-45, 38) if dtype != "float16" else st.integers(-8, 4)
    )
    if draw(st.booleans()) and size:
        strewn = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, *_SPECIAL[dtype]])
        chosen = rng.choice(strewn, draw(st.integers(1, 5)))
        values[rng.integers(0, size, len(chosen))] = chosen
    return store(values, dtype)


def _any_bits(rng: np.random.Generator, size: int, dtype: str) -> Stored:
    if dtype == "bool":
        return rng.random(size) < 0.5
    storage = np.dtype("uint16" if dtype == "bfloat16" else "uint8" if dtype in ONLY_BYTES else dtype)
    return np.frombuffer(rng.bytes(size * storage.itemsize), storage)


def _styled(style: str, rng: np.random.Generator, size: int) -> Floats:
    normal = rng.standard_normal(size)
    return {
        "normal": normal,
        "narrow": 100.0 + 0.1 * normal,
        "few": rng.choice([-2.5, -1.0, 0.0, 1.0, 3.0], size),
        "constant": np.full(size, 1.25),
        "half zero": np.maximum(normal, 0.0),
    }[style]


def summary_by(arena: kernel.Arena, stored: Stored, dtype: str, threads: int = 1) -> summary_spec.Summary:
    """The summary that the arena makes of the stored elements."""
    arena.add(stored.ctypes.data, stored.size, kernel.format_number(dtype), threads)
    collected = arena.drain()
    return summary_spec.Summary(
        collected.moments[0], summary_spec.decode(int(collected.m[0]), collected.bits.tobytes())
    )


def expected(stored: Stored, dtype: str) -> summary_spec.Summary:
    return kernel.summarize(load(stored, dtype), summary_spec.SMALLEST_NORMAL[dtype])


def assert_same_summary(got: summary_spec.Summary, wanted: summary_spec.Summary, values: Floats) -> None:
    """Counts, extremes and bit-counts equal; sums within the stated tolerance."""
    assert got.bits.m == wanted.bits.m
    np.testing.assert_array_equal(got.bits.codes, wanted.bits.codes)
    np.testing.assert_array_equal(got.bits.counts, wanted.bits.counts)
    for part in (slice(0, SUMS.start), slice(SUMS.stop, None)):
        np.testing.assert_array_equal(got.moments[part], wanted.moments[part])
    assert_same_sums(got.moments, wanted.moments, values)


def assert_same_sums(got: Floats, wanted: Floats, values: Floats) -> None:
    finite = np.abs(values[np.isfinite(values)])
    powers: tuple[int, ...] = POWERS
    if np.isinf(wanted[summary_spec.COLUMN["sum2"]]):  # the higher ones are those of smaller numbers then
        np.testing.assert_allclose(got[SUMS][3:], wanted[SUMS][3:], rtol=1e-12, atol=1e-12 * wanted[SUMS][4])
        powers = POWERS[:3]
    for a, b, power in zip(got[SUMS], wanted[SUMS], powers, strict=False):
        with np.errstate(over="ignore", under="ignore"):
            magnitudes = finite**power
            total = magnitudes.sum()
        if np.isfinite(total):
            assert abs(a - b) <= SUM_TOLERANCE * total + len(finite) * 1e-323
        elif np.isinf(magnitudes).any():
            assert not np.isfinite(a)
            assert not np.isfinite(b)
