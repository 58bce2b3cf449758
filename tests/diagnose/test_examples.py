"""Every broken training of the examples is run, and the command must name its fault; sound ones must have none."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerscope as ls
from layerscope.cli.main import main
from tests.repo.source import ROOT

BROKEN = ROOT / "examples" / "broken"
FAULTS = {  # example → rule, site, step of its first finding, and what else may be said
    "dead_relu": ("dead_units", "3", 20, set()),
    "detached": ("stuck_weights", "right.weight", 0, set()),
    "diverging": ("loss_growing", "", None, set()),
    "exploding": ("exploding_gradients", "1.weight", None, {"loss_growing", "loss_not_finite", "not_finite"}),
    "exploding_depth": ("exploding_gradients", "0.bias", 0, set()),
    "large_update": ("update_too_large", "0.weight", None, set()),
    "nan_backward": ("not_finite", "1", 25, {"loss_not_finite"}),
    "nan_forward": ("not_finite", "3", 25, {"loss_not_finite"}),
    "skipped_amp": ("skipped_updates", "", 20, set()),
    "small_update": ("update_too_small", "0.weight", 0, set()),
    "stuck": ("stuck_weights", "2.weight", 0, set()),
    "vanishing": ("vanishing_gradients", "0.bias", 0, {"update_too_small"}),
}


def checked(folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["check", str(folder), "--json"])
    (diagnosis,) = json.loads(capfd.readouterr().out)
    return code, diagnosis


def test_every_broken_example_has_a_fault_to_be_named() -> None:
    assert {path.stem for path in BROKEN.glob("*.py")} == set(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_check_names_the_fault_of_a_broken_example(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "run")])
    runpy.run_path(str(BROKEN / f"{name}.py"))
    code, diagnosis = checked(tmp_path / "run", capfd)
    rule, site, step, others = FAULTS[name]
    cause, *more = diagnosis["findings"]
    assert (cause["rule"], cause["site"]) == (rule, site)
    assert step in (None, cause["step"])
    assert not more
    assert {found["rule"] for found in cause["consequences"]} <= others
    assert code == (cause["severity"] == "error")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(32, 16), nn.LSTM(16, 32, 2, batch_first=True), nn.Linear(32, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embed(tokens))[0])
        return logits


def mlp() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.ReLU())), nn.Linear(16, 1))

    def loss() -> Tensor:
        x = torch.randn(64, 16)
        return nn.functional.mse_loss(model(x), x[:, :1] * x[:, 1:2])

    return model, loss


def cnn() -> tuple[nn.Module, Callable[[], Tensor]]:
    blocks = ((nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for i in range(4))
    model = nn.Sequential(*(layer for block in blocks for layer in block), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(8, 2))

    def loss() -> Tensor:
        x = torch.randn(16, 3, 8, 8)
        return nn.functional.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0).long())

    return model, loss


def lstm() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = Recurrent()

    def loss() -> Tensor:
        tokens = torch.randint(32, (8, 12))
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())

    return model, loss


def gpt2() -> tuple[nn.Module, Callable[[], Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0)
    model: nn.Module = GPT2LMHeadModel(small)  # type: ignore[no-untyped-call]

    def loss() -> Tensor:
        tokens = torch.randint(64, (4, 12))
        found: Tensor = model(tokens, labels=tokens).loss
        return found

    return model, loss


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer_of", [sgd, adamw], ids=lambda f: f.__name__)
@pytest.mark.parametrize("training", [mlp, cnn, lstm, gpt2], ids=lambda f: f.__name__)
def test_check_finds_nothing_in_a_sound_training(
    training: Callable[[], tuple[nn.Module, Callable[[], Tensor]]],
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(0)
    model, loss_of = training()
    optimizer = optimizer_of(model)
    with ls.watch(model, optimizer, to=tmp_path / "run", every=2, kinds="all") as run:
        for _ in range(200):
            loss = loss_of()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss=loss)
    capfd.readouterr()
    code, diagnosis = checked(tmp_path / "run", capfd)
    assert diagnosis["findings"] == []
    assert diagnosis["not_checked"] == []
    assert code == 0
