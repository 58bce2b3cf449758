"""Statistics of samples are the same from the compiled kernel, from numpy, and from values that were kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import layerscope as ls
from layerscope.capture.core.named_values import sample_statistics
from layerscope.capture.torch.framework import TorchFramework
from layerscope.model.records import SAMPLE_STATISTICS, Floats
from layerscope.query.named_tensors import statistics_of
from layerscope.stats import kernel

FRAMEWORK = TorchFramework()
COLUMNS = (1, 3, 8, 1025, 5000)


@pytest.fixture(params=["compiled", "numpy"])
def arena(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> kernel.RowArena:
    if request.param == "numpy":
        monkeypatch.setattr(kernel, "_rows", None)
    elif kernel._rows is None:
        pytest.skip("the kernel is not compiled")
    return kernel.RowArena()


def holed(columns: int) -> npt.NDArray[np.float32]:
    """Rows without, with few, with many and with only numbers that are not finite; some begin with one."""
    x = np.random.default_rng(columns).normal(1e3, 1e-2, size=(6, columns)).astype(np.float32)
    x[1, columns // 2] = np.nan
    x[2, 0] = np.inf
    x[3, ::2] = -np.inf
    x[4, : columns - 1] = np.nan
    x[5] = np.inf
    return x


def expected(x: npt.NDArray[np.float32]) -> Floats:
    known = statistics_of(x)
    return np.stack([known[name] for name in SAMPLE_STATISTICS], 1)


def numbers(arena: kernel.RowArena, x: torch.Tensor) -> Floats:
    first, _ = sample_statistics(arena, FRAMEWORK, x, 0)
    return arena.numbers[first : first + len(x)]


@pytest.mark.parametrize("columns", COLUMNS)
def test_statistics_of_a_sample_are_those_of_its_finite_values(arena: kernel.RowArena, columns: int) -> None:
    x = holed(columns)
    found = numbers(arena, torch.from_numpy(x))
    assert np.allclose(found, expected(x), rtol=1e-9, equal_nan=True)
    assert np.isnan(found[5]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float64, torch.int16])
def test_every_format_has_statistics_of_its_samples(arena: kernel.RowArena, dtype: torch.dtype) -> None:
    x = torch.from_numpy(holed(100)).nan_to_num(posinf=float("inf"), neginf=float("-inf")) / 1e3
    x = x.nan_to_num(0, 1, 1) if not dtype.is_floating_point else x
    x = x.to(dtype)
    found = numbers(arena, x)
    assert np.allclose(found, expected(x.float().numpy()), rtol=1e-9, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("columns", COLUMNS)
def test_statistics_over_the_batch_are_those_of_its_samples(arena: kernel.RowArena, columns: int) -> None:
    for x in (holed(columns), holed(columns)[:1], np.zeros((3, 0), np.float32)):
        first, batch = sample_statistics(arena, FRAMEWORK, torch.from_numpy(x), 0)
        each = arena.numbers[first : first + len(x)]
        over = np.stack((each.mean(0), each.std(0), np.abs(each).max(0)), 1).ravel()
        assert np.allclose(arena.over[batch], over, rtol=1e-12, equal_nan=True)


def test_the_arena_keeps_what_it_has_when_it_grows_and_forgets_it_when_it_starts_over(arena: kernel.RowArena) -> None:
    x = torch.randn(40, 3)
    found = [sample_statistics(arena, FRAMEWORK, x * place, 0) for place in range(200)]
    for place, (first, batch) in enumerate(found):
        sizes = (x.double() * place).abs().amax(1).numpy()
        assert np.allclose(arena.numbers[first : first + 40, -1], sizes, rtol=1e-6)
        assert arena.over[batch, -1] == pytest.approx(sizes.max(), rel=1e-6)
    arena.start_over()
    assert sample_statistics(arena, FRAMEWORK, x, 0) == (0, 0)


def test_a_sample_with_a_nan_has_the_same_statistics_at_every_depth(tmp_path: Path) -> None:
    x = torch.from_numpy(holed(7))
    with ls.watch(None, to=tmp_path / "run", every=1, detail=ls.Detail(samples=6)) as run:
        for detail in ("statistics", "samples", "all"):
            run.record(detail, x, detail=detail)
        run.record("second", x[1], batch_dim=None)
        run.step()
    named = ls.open(tmp_path / "run").named()
    for sample in range(6):
        told = named.statistics(step=0, name="statistics", sample=sample)
        for detail in ("samples", "all"):
            kept = named.statistics(step=0, name=detail, sample=sample)
            assert {name: kept[name] for name in told} == pytest.approx(told, rel=1e-9, nan_ok=True)
    summary = named.statistics(step=0, name="second")
    told = named.statistics(step=0, name="statistics", sample=1)
    assert told["mean"] == pytest.approx(summary["mean"], rel=1e-12)
    assert told["abs_max"] == summary["abs_max"]
