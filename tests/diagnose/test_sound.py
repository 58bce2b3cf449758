"""Nothing is found in trainings that are sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import layerscope as ls
from layerscope.diagnose.findings import Diagnosis
from layerscope.diagnose.rules import check
from tests.diagnose.runs import rules


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


class WithBias(nn.Module):
    """Like the attention of T5: beside its output it gives a bias of positions, of zeros where there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), torch.zeros(4, 16)


def two_outputs() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = WithBias()
    return model, lambda: model(torch.randn(8, 16))[0].square().mean()


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x)
        return y * 0, y.square().mean()


def dead_with_loss() -> tuple[nn.Module, Callable[[], Tensor]]:
    model = WithLoss()
    return model, lambda: model(torch.randn(8, 16))[1]


def vit() -> tuple[nn.Module, Callable[[], Tensor]]:
    from transformers import ViTConfig, ViTForImageClassification

    small = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=4
    )
    model: nn.Module = ViTForImageClassification(small)

    def loss() -> Tensor:
        x = torch.randn(8, 3, 16, 16)
        found: Tensor = model(x, labels=(x.mean((1, 2, 3)) > 0).long()).loss
        return found

    return model, loss


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def slow_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


Training = Callable[[], tuple[nn.Module, Callable[[], Tensor]]]
Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


def trained(training: Training, optimizer_of: Optimizer, folder: Path, steps: int) -> Diagnosis:
    torch.manual_seed(0)
    model, loss_of = training()
    optimizer = optimizer_of(model)
    with ls.watch(model, optimizer, to=folder, every=2, kinds="all") as run:
        for _ in range(steps):
            loss = loss_of()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss=loss)
    return check(folder)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer_of", [sgd, adamw], ids=lambda f: f.__name__)
@pytest.mark.parametrize("training", [mlp, cnn, lstm, gpt2, vit], ids=lambda f: f.__name__)
def test_check_finds_nothing_in_a_sound_training(training: Training, optimizer_of: Optimizer, tmp_path: Path) -> None:
    diagnosis = trained(training, optimizer_of, tmp_path / "run", 200)
    assert diagnosis.findings == ()
    assert diagnosis.not_checked == ()


def test_a_module_that_gives_zeros_beside_its_output_is_sound(tmp_path: Path) -> None:
    assert rules(trained(two_outputs, slow_sgd, tmp_path / "run", 40)) == []


def test_a_dead_module_with_a_loss_beside_its_output_is_dead(tmp_path: Path) -> None:
    found = trained(dead_with_loss, slow_sgd, tmp_path / "run", 40).findings
    assert [(each.rule, each.site) for each in found] == [("dead_units", "(model)")]


def test_a_bias_that_a_normalization_takes_away_may_stay_what_it_was(tmp_path: Path) -> None:
    assert rules(trained(cnn, slow_sgd, tmp_path / "run", 40)) == []
