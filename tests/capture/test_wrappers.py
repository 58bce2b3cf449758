"""Tensors that wrap others: shards of DTensors are read, all other wrappers are left out by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.two_tensor import TwoTensor

import layerscope as ls
from layerscope.capture.torch.targets import Choices
from layerscope.errors import SelectError
from layerscope.model.records import Kind
from layerscope.stats import torch as stats
from layerscope.stats.kernel import Arena
from tests.capture.naming import recording
from tests.capture.test_reading_points import watching


@pytest.fixture
def process_group() -> Iterator[None]:
    """A group of one process."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kinds", [("output", "weight", "weight_grad"), "all"])
def test_a_model_under_fsdp_is_recorded_as_shards(kinds: Choices, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 2))
    for part in (model[0], model[2], model):
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters())
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds=kinds) as run:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 40)).square().sum().backward()
            optimizer.step()
            run.step()
    table = ls.open(tmp_path / "run").stats("2.weight", kind="weight*", steps=(1, 1), stat="rms")
    weight: Any = model[2].weight
    expected = [tensor.detach().to_local().double().square().mean().sqrt() for tensor in (weight.grad, weight)]
    assert table["rms"] == pytest.approx([float(value) for value in expected], rel=1e-12)
    assert table["local"] == ["shard"] * 2
    assert ls.open(tmp_path / "run").events()["text"] == ["Recording ended."]


@pytest.mark.usefixtures("process_group")
def test_a_model_that_fsdp_left_gathered_after_an_evaluation_is_recorded_in_the_next_step(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds="all") as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            with torch.no_grad():
                model(torch.randn(3, 4))
            run.step()
    table = ls.open(tmp_path / "run").stats("1.weight", kind=["weight", "weight_grad", "update"], stat="count")
    assert table["step"] == [0, 1, 2] * 3
    assert set(table["local"]) == {"shard"}


def test_a_wrapper_is_never_read_by_its_address() -> None:
    wrapper = TwoTensor(torch.ones(3), torch.zeros(3))[1:]  # its address is that of element 1 of nothing
    assert stats.in_place(wrapper) is None
    with pytest.raises(SelectError, match="A TwoTensor wraps other tensors"):
        stats.add(Arena(), wrapper)
    rows, errors = stats.add_many(Arena(), [wrapper, torch.ones(2)])
    assert rows == [-1, 0]
    assert list(errors) == [0]


def test_memory_that_was_freed_is_not_read() -> None:
    whole = torch.ones(100)
    part = whole[50:]
    whole.untyped_storage().resize_(0)
    assert stats.in_place(part) is None
    with pytest.raises(SelectError, match="no memory"):
        stats.add(Arena(), part)


class Doubling(nn.Module):
    """Gives a tensor of a class that wraps two."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The output twice, in one tensor."""
        return TwoTensor(y := self.inner(x), y)


def test_another_wrapper_is_left_out_with_an_event_that_names_it() -> None:
    model = nn.Sequential(Doubling(), nn.Tanh())
    sink, run = watching(model, torch.optim.SGD(model.parameters()), kinds="all")
    with run:
        for _ in range(2):
            model(torch.randn(2, 3))
            run.step()
    texts = [event.text for event in sink.warnings()]
    assert any(text.startswith("output of '0' is not recorded: A TwoTensor wraps other tensors") for text in texts)
    assert len(texts) == len(set(texts))
    assert sink.stat("count", "0.inner", Kind.OUTPUT) == 6


@pytest.mark.usefixtures("process_group")
def test_a_recorded_dtensor_has_the_values_of_its_local_part_and_the_row_says_which() -> None:
    mesh = init_device_mesh("cpu", (1,))
    value = torch.arange(12.0).reshape(4, 3)
    with recording() as (sink, run):
        for name, placement in {"sharded": Shard(0), "whole": Replicate(), "partial": Partial()}.items():
            run.record(name, DTensor.from_local(value, mesh, [placement]))
        leaf = torch.ones(4, 3, requires_grad=True)
        recorded = run.record("graded", DTensor.from_local(leaf, mesh, [Shard(0)]))
        (recorded * 3).to_local().sum().backward()  # type: ignore[attr-defined]  # it is a DTensor
        run.step()
    assert np.array_equal(sink.value(0, "sharded").array, value.numpy())
    local = {series.site: series.local for series in sink.series if series.kind is Kind.TENSOR}
    assert local == {"sharded": "shard", "whole": "", "partial": "before reduction", "graded": "shard"}
    assert sink.stat("mean", "graded", Kind.TENSOR_GRAD) == 3
    assert not sink.warnings()
