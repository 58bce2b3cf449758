"""Watching beside other processes: DistributedDataParallel, FSDP and the workers of a data loader."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import layerscope as ls
from layerscope.model.records import Kind
from tests.capture.models import Mlp
from tests.capture.training import checked, sites, steps

pytestmark = pytest.mark.feature("E7")


@pytest.fixture
def process_group() -> Iterator[None]:
    """A group of one process."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("bucket_view", [False, True])
def test_a_model_in_distributed_data_parallel_is_recorded(bucket_view: bool) -> None:
    def make() -> nn.Module:
        return DistributedDataParallel(Mlp().double(), gradient_as_bucket_view=bucket_view)

    sink = checked(make, steps)
    assert {"(model)", "module", "module.layers.0"} <= sites(sink, Kind.OUTPUT)
    assert "module.layers.0.weight" in sites(sink, Kind.WEIGHT_GRAD)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_train_bit_for_bit_as_unwatched_and_each_records_its_own_part(way: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.capture.distributed", way]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)


def test_the_workers_of_a_data_loader_do_not_disturb_the_recording(tmp_path: Path) -> None:
    def train(run: Any, model: nn.Module, optimizer: Optimizer) -> list[float]:
        data = TensorDataset(torch.randn(24, 6, generator=torch.Generator().manual_seed(1)))
        losses = []
        for _ in range(2):
            for (x,) in DataLoader(data, batch_size=6, shuffle=True, num_workers=2):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if run is not None:
                    run.step(loss=loss)
        return losses

    def fresh() -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(3)
        model = Mlp()
        return model, torch.optim.Adam(model.parameters())

    expected = train(None, *fresh())
    model, optimizer = fresh()
    with ls.watch(model, optimizer, to=tmp_path / "run", every=1, kinds="all") as run:
        assert train(run, model, optimizer) == expected
    read = ls.open(tmp_path / "run")
    assert read.metrics()["loss"] == expected
    assert read.stats("layers.0", kind="output", stat="count")["count"] == [6 * 16] * 8
