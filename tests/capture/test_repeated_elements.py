"""Views that repeat the elements of a smaller tensor: summarized right, and never copied in full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerscope as ls
from layerscope.model import summary_spec
from layerscope.stats.kernel import Arena
from layerscope.stats.torch import add

HUGE = 10**11


class Viewed(nn.Module):
    """Gives a view of its input."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.view = view

    def forward(self, x: Tensor) -> Tensor:
        return self.view(x * self.weight)


def recorded(model: nn.Module, x: Tensor, to: Path, **options: Any) -> ls.Run:
    with ls.watch(model, to=to, every=1, **options) as run:
        for _ in range(2):
            model(x)
            run.step(loss=1.0)
    return ls.open(to)


def test_an_expanded_output_counts_each_element_as_often_as_it_occurs(tmp_path: Path) -> None:
    run = recorded(Viewed(lambda x: x.expand(HUGE, 2)), torch.tensor([3.0, -1.0]), tmp_path / "run", kinds="output")
    row = run.stats("(model)", stat=["count", "mean", "rms", "min", "max", "mean_abs"], steps=(1, 1))
    assert row["count"] == [2 * HUGE]
    assert row["mean"] == [pytest.approx(1.0, rel=1e-12)]
    assert row["rms"] == [pytest.approx(5**0.5, rel=1e-12)]
    assert (row["min"], row["max"]) == ([-1.0], [3.0])
    histogram = run.histograms("(model)", bins=4, steps=(1, 1))
    assert sum(histogram["counts"][0]) == pytest.approx(2 * HUGE, rel=1e-12)
    assert "layerscope stopped" not in str(run.events()["text"])
    assert run.metrics()["loss"] == [1.0, 1.0]


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 1, 6), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_the_summary_of_an_expanded_tensor_is_that_of_its_copy(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    base = torch.randn(shape[0], 1, shape[2]).mul(10).to(dtype)
    view = base.expand(*shape).unsqueeze(2).expand(shape[0], shape[1], 3, shape[2])
    arena = Arena()
    add(arena, view)
    add(arena, view.contiguous())
    drained = arena.drain()
    np.testing.assert_allclose(drained.moments[0], drained.moments[1], rtol=1e-12)
    row, codes, counts = summary_spec.decode_rows(drained.m, drained.offsets, drained.bits)
    assert codes[row == 0].tolist() == codes[row == 1].tolist()
    assert counts[row == 0].tolist() == counts[row == 1].tolist()


def test_overlapping_views_of_moderate_size_are_summarized() -> None:
    windows = torch.arange(10.0).unfold(0, 4, 1)
    arena = Arena()
    add(arena, windows)
    add(arena, windows.contiguous())
    one, other = arena.drain().moments
    np.testing.assert_array_equal(one, other)


def test_an_overlapping_view_that_is_too_large_is_left_out_and_named(tmp_path: Path) -> None:
    def windows(x: Tensor) -> Tensor:
        return x.detach().as_strided((10**6, 10**5), (1, 1))

    run = recorded(Viewed(windows), torch.ones(1_100_000), tmp_path / "run", kinds=["output", "weight"])
    texts = run.events()["text"]
    assert any("output of '(model)' is not recorded" in text and "100,000,000,000" in text for text in texts)
    assert set(run.stats(stat="rms")["kind"]) == {"weight"}
    assert run.stats("weight", stat="rms")["step"] == [0, 1]


def test_custom_statistics_are_not_asked_of_a_view_too_large_to_copy(tmp_path: Path) -> None:
    asked: list[int] = []

    def own(tensor: Tensor) -> dict[str, float]:
        asked.append(tensor.numel())
        return {"elements": float(tensor.numel())}

    run = recorded(Viewed(lambda x: x.expand(HUGE, 2)), torch.ones(2), tmp_path / "run", statistics=own)
    assert asked
    assert HUGE * 2 not in asked
    assert any("no custom statistics" in text for text in run.events()["text"])


def test_a_named_view_of_any_size_does_not_stop_the_recording(tmp_path: Path) -> None:
    base = torch.ones(1, 2, requires_grad=True)
    with ls.watch(None, to=tmp_path / "run", every=1) as recorder:
        for _ in range(2):
            recorder.begin()
            recorder.record("wide", base.expand(HUGE, 2))
            recorder.record("small", base * 2)
            recorder.step()
    run = ls.open(tmp_path / "run")
    assert run.stats("wide", kind="tensor", stat="count")["count"] == [2 * HUGE] * 2
    assert run.stats("small", kind="tensor", stat="mean")["mean"] == [2.0, 2.0]
