"""Two hundred steps with all kinds recorded: every loss is, bit for bit, that of the unwatched training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import layerscope as ls
from tests.capture.models import InPlaceCnn, Mlp, Recurrent, gpt2
from tests.capture.training import Make, differences, trained, unwatched

STEPS = 200


def vectors_loop(model: nn.Module, optimizer: Optimizer) -> Iterator[Tensor]:
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(8, 6)
        loss = (model(x) - x[:, :3]).square().mean()
        loss.backward()
        optimizer.step()
        yield loss


def tokens_loop(model: nn.Module, optimizer: Optimizer) -> Iterator[Tensor]:
    for _ in range(STEPS):
        optimizer.zero_grad()
        ids = torch.randint(0, 40, (2, 8))
        loss = nn.functional.cross_entropy(model(input_ids=ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        yield loss


@pytest.mark.slow
@pytest.mark.feature("E1")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of transformers' own code
@pytest.mark.parametrize("make", [Mlp, InPlaceCnn, Recurrent, gpt2], ids=["mlp", "cnn", "lstm", "gpt2"])
def test_two_hundred_losses_are_the_same_bit_for_bit(make: Make, tmp_path: Path) -> None:
    loop = tokens_loop if make is gpt2 else vectors_loop
    plain = trained(make, loop, unwatched)
    watched = trained(make, loop, lambda m, o: ls.watch(m, o, to=tmp_path / "run", every=1, kinds="all"))
    assert len([name for name in plain if name.endswith("result")]) == STEPS
    assert differences(plain, watched) == []
    assert set(ls.open(tmp_path / "run").stats(stat="count")["step"]) == set(range(STEPS))
