"""One of two processes that train together, unwatched and watched: give way, rank and folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import layerscope as ls
from tests.capture.training import differences

RANKS, STEPS = 2, 3
Bits = dict[str, Tensor]


class Net(nn.Module):
    """Has shards of unequal size (5 rows for 2 processes) and empty ones (1 row)."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(6, 5)
        self.drop = nn.Dropout(0.3)
        self.narrow = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number for each sample."""
        result: Tensor = self.narrow(self.drop(torch.tanh(self.wide(x))))
        return result


def make(way: str) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(5)
    model: nn.Module = Net()
    if way == "fsdp":
        for part in reversed([model, *model.children()]):
            fully_shard(part)
    else:
        model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def local(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def train(way: str, rank: int, run_of: Any) -> Bits:
    """Everything that can be compared, of every step, as this process has it."""
    model, optimizer = make(way)
    torch.manual_seed(100 + rank)
    bits: Bits = {}

    def keep(step: int, site: str, port: str, tensor: Tensor) -> None:
        bits[f"{step} {site} {port}"] = local(tensor).clone()

    with run_of(model, optimizer) as run:
        for step in range(STEPS):
            before = {name: local(parameter).clone() for name, parameter in model.named_parameters()}
            optimizer.zero_grad()
            output = model(torch.randn(4, 6))
            loss = output.square().mean()
            if way == "ddp":  # what this process adds: nothing is accumulated, so nothing is reduced
                own = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
                for (name, _), gradient in zip(model.named_parameters(), own, strict=True):
                    keep(step, name, "weight_grad@loss", gradient)
            loss.backward()
            if run is not None and way == "ddp":
                run.gradients("loss")
            optimizer.step()
            keep(step, "(model)", "output.0", output)
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                keep(step, name, "weight", parameter)
                keep(step, name, "weight_grad", parameter.grad)
                keep(step, name, "update", local(parameter) - before[name])
                keep(step, name, "state.exp_avg", optimizer.state[parameter]["exp_avg"])
            bits[f"{step} random state"] = torch.get_rng_state()
            if run is not None:
                run.step()
    return bits


def check(folder: Path, bits: Bits, way: str, *, everything: bool) -> None:
    """Compare what is on disk with the tensors of this process, in float64."""
    read = ls.open(folder)
    statistics = ("count", "mean", "rms", "min", "max")
    rows = read.stats(stat=list(statistics)).arrow().to_pylist()
    kinds = ("output", "weight", "weight_grad", "update", "optimizer", "tensor_grad")
    found = {(row["step"], row["site"], row["port"]): row for row in rows if row["kind"] in kinds}
    assert not [text for text in read.events()["text"] if text != "Recording ended."]
    for key, tensor in bits.items():
        step, site, *port = key.split()
        if port in (["state"], []) or (port[0] in ("update", "state.exp_avg") and not everything):
            continue
        row = found[int(step), site, port[0]]
        local = "shard" if way == "fsdp" and site != "(model)" else "before reduction" if "@" in port[0] else ""
        assert row["local"] == local, key
        x = tensor.double()
        expected = [x.numel(), x.mean(), x.square().mean().sqrt(), *((x.min(), x.max()) if x.numel() else (0, 0))]
        for name, value in zip(statistics, expected, strict=True):
            near = torch.isclose(torch.tensor(row[name], dtype=torch.float64), torch.as_tensor(value).double(), 1e-12)
            assert near or (name != "count" and not x.numel()), (key, name, row[name], value)
    if way == "fsdp":
        assert sorted({found[0, name, "weight"]["count"] for name in ("wide.bias", "narrow.bias")}) in ([1, 3], [0, 2])


def main(way: str, rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)

    class Unwatched:
        def __enter__(self) -> None: ...
        def __exit__(self, *exception: object) -> None: ...

    def unwatched(model: nn.Module, optimizer: Optimizer) -> Unwatched:
        return Unwatched()

    plain = train(way, rank, unwatched)
    for name in ("default", "all", "one"):
        to = folder / f"{name}-{rank}"

        def watched(model: nn.Module, optimizer: Optimizer, to: Path = to, name: str = name) -> Any:  # a recorder
            if name == "default":
                return ls.watch(model, optimizer, to=to, every=1)
            return ls.watch(model, optimizer, to=to, every=1, kinds="all")

        is_watched = name != "one" or rank == 0  # nothing may wait for a process that does not watch
        changed = differences(plain, train(way, rank, watched if is_watched else unwatched))
        assert not changed, f"watching {name} changed {changed}"
        if is_watched:
            check(to, plain, way, everything=name != "default")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
