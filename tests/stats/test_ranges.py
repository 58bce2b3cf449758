"""What number formats hold is what PyTorch's own conversions make of numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from layerscope.model.number_formats import BYTES, RANGES, Range
from layerscope.model.records import Floats
from layerscope.stats import derived
from layerscope.stats.derived import lost
from layerscope.views.scales import magnitudes
from tests.views.histories import history_of

IN_TORCH = [name for name in RANGES if hasattr(torch, name)]


def lost_of(tensor: Floats, held: Range) -> list[float]:
    """What is said of the tensor: to zero, subnormal, too large."""
    history = history_of({0: tensor})
    decoded: derived.BitRows = magnitudes(history.bits.decoded(np.array([0, 1])))
    counted: list[float] = lost(decoded, held)[0].tolist()
    return counted


@pytest.mark.parametrize("name", IN_TORCH)
def test_the_limits_are_those_of_the_format(name: str) -> None:
    held, told = RANGES[name], torch.finfo(getattr(torch, name))
    assert (held.largest, held.smallest_normal) == (told.max, told.smallest_normal)
    if name in BYTES:
        assert held.smallest == BYTES[name][BYTES[name] > 0].min()
    else:
        assert held.mantissa_bits == -math.log2(told.eps)


def test_small_formats_are_those_of_the_open_compute_project() -> None:
    """Microscaling formats 1.0, table 1: largest, smallest normal, smallest subnormal."""
    told = {"float6_e3m2fn": (28.0, 0.25, 0.0625), "float6_e2m3fn": (7.5, 1.0, 0.125), "float4_e2m1fn": (6.0, 1.0, 0.5)}
    for name, limits in told.items():
        held = RANGES[name]
        assert (held.largest, held.smallest_normal, held.smallest) == limits


@pytest.mark.parametrize("name", IN_TORCH)
def test_what_is_lost_is_what_a_conversion_loses(name: str) -> None:
    rng, held = np.random.default_rng(0), RANGES[name]
    # Clear of the end of the range, which lies inside a bucket.
    ends = np.log2([held.smallest, held.largest])
    exponents = rng.integers(max(int(ends[0]) - 4, -1070), int(ends[1]) + 6, 20_000)
    exponents = exponents[exponents != int(np.floor(ends[1]))]
    tensor = np.ldexp(rng.uniform(1.0, 2.0, len(exponents)), exponents) * rng.choice([-1.0, 1.0], len(exponents))
    dtype = getattr(torch, name)
    made = torch.from_numpy(tensor).to(dtype).double().abs()
    too_large = ~made.isfinite() | ((made == held.largest) & (torch.from_numpy(np.abs(tensor)) > held.largest))
    to_zero = made == 0
    subnormal = torch.from_numpy(np.abs(tensor)) < held.smallest_normal
    expected = [to_zero.sum().item(), (subnormal & ~to_zero).sum().item(), too_large.sum().item()]
    assert lost_of(tensor, held) == pytest.approx(expected)
    assert min(expected[0], expected[2]) > 0


@pytest.mark.parametrize("name", [name for name in IN_TORCH if name != "float32"])
def test_ties_go_where_a_conversion_takes_them(name: str) -> None:
    held, dtype = RANGES[name], getattr(torch, name)
    smallest, tie = np.float32(held.smallest / 2), np.float32(held.rounded_beyond)
    for value in (smallest, np.nextafter(smallest, np.float32(1)), np.nextafter(tie, np.float32(0)), tie):
        made = torch.tensor(float(value), dtype=torch.float32).to(dtype).double()
        to_zero, _, too_large = lost_of(np.full(3, float(value)), held)
        assert (to_zero == 3) == (made == 0).item(), value
        if name != "float8_e4m3fn":  # becomes the largest
            assert (too_large == 3) == (not made.isfinite()), value
