"""Small networks of five families, trained for a moment: what the page is looked at with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import layerscope as ls

STEPS = 40
#: The layer of the broken run whose weights grow, and the first step at which they do.
EXPLODING, SINCE = "hidden.2.0", 20


class Perceptron(nn.Module):
    """A few dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 64)
        self.hidden = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)))
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.hidden(torch.relu(self.embed(x))))
        return result


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3, 1 × 1, and the input beside them, projected where it changes."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride > 1 or width_in != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(width_in, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.bn1(self.conv1(x)))
        hidden = self.relu(self.bn2(self.conv2(hidden)))
        hidden = self.bn3(self.conv3(hidden))
        hidden += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(hidden)
        return result


class ResNet(nn.Module):
    """The 3, 4, 6 and 3 bottlenecks of a ResNet-50, on few channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.wide = 8
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            self.stage(width, blocks, stride)
            for width, blocks, stride in ((4, 3, 1), (8, 4, 2), (16, 6, 2), (32, 3, 2))
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.wide, 10)

    def stage(self, width: int, blocks: int, stride: int) -> nn.Sequential:
        made = []
        for at in range(blocks):
            made.append(Bottleneck(self.wide, width, stride if at == 0 else 1))
            self.wide = 4 * width
        return nn.Sequential(*made)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        hidden = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        result: Tensor = self.fc(self.avgpool(hidden).flatten(1))
        return result


class Reader(nn.Module):
    """Symbols in, the next symbol out, by way of two layers of LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 24)
        self.lstm = nn.LSTM(24, 48, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(tokens))
        result: Tensor = self.head(self.norm(hidden))
        return result


class Twice(nn.Module):
    """Two convolutions, each normalized."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.GroupNorm(2, width)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.act(self.norm2(self.conv2(self.act(self.norm1(self.conv1(x))))))
        return result


class UNet(nn.Module):
    """Down, across and up again, with skips between equal sizes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1 = Twice(1, width)
        self.down2 = Twice(width, 2 * width)
        self.pool = nn.MaxPool2d(2)
        self.across = Twice(2 * width, 4 * width)
        self.rise2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up2 = Twice(4 * width, 2 * width)
        self.rise1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up1 = Twice(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        bottom = self.across(self.pool(second))
        hidden = self.up2(torch.cat((self.rise2(bottom), second), 1))
        result: Tensor = self.out(self.up1(torch.cat((self.rise1(hidden), first), 1)))
        return result


def gpt2() -> nn.Module:
    """Hugging Face's GPT-2, without dropout, with four narrow blocks."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, n_head=2, n_embd=32, n_positions=32, vocab_size=64, bos_token_id=0, eos_token_id=0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model: nn.Module = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    return model


@dataclass(frozen=True)
class Training:
    """A model, its batches and what it is to make small."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    loss: Callable[[nn.Module, Tensor], Tensor]
    rate: float = 1e-3
    broken: bool = False


def _classes(model: nn.Module, x: Tensor) -> Tensor:
    """Which quarter of the unit interval the mean of an input's first numbers falls into."""
    said = model(x)
    target = (torch.sigmoid(3 * x.flatten(1)[:, :8].mean(1)) * 4).long().clamp(0, 3)
    return nn.functional.cross_entropy(said, target)


def _next_symbol(model: nn.Module, tokens: Tensor) -> Tensor:
    said = model(tokens[:, :-1])
    logits = getattr(said, "logits", said)
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def _image(model: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), x.roll(1, -1))


def _counting(symbols: int) -> Callable[[], Tensor]:
    return lambda: (torch.randint(symbols, (8, 1)) + 3 * torch.arange(17)) % symbols


TRAININGS = (
    Training("mlp", Perceptron, lambda: torch.randn(64, 8), _classes),
    Training("mlp-exploding", Perceptron, lambda: torch.randn(64, 8), _classes, broken=True),
    Training("resnet", ResNet, lambda: torch.randn(8, 3, 64, 64), _classes),
    Training("gpt2", gpt2, _counting(64), _next_symbol, 3e-3),
    Training("lstm", Reader, _counting(32), _next_symbol, 1e-2),
    Training("unet", UNet, lambda: torch.randn(4, 1, 32, 32), _image),
)


class _Growth:
    """After each step from a certain one on, the weights of one layer are three times as large: a planted fault."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.steps = 0

    def __call__(self, *_: object) -> None:
        self.steps += 1
        if self.steps > SINCE:
            self.layer.get_parameter("weight").data.mul_(3.0)


def train(training: Training, folder: Path, steps: int = STEPS) -> Iterator[int]:
    """Train and record everything, with an evaluation every fifth step and a trace of the middle one; gives steps."""
    torch.manual_seed(0)
    model = training.model()
    optimizer = torch.optim.AdamW(model.parameters(), training.rate)
    if training.broken:
        optimizer.register_step_post_hook(_Growth(model.get_submodule(EXPLODING)))
    with ls.watch(model, optimizer, to=folder, every=1, kinds="all") as run:
        for step in range(steps):
            batch = training.inputs()
            if step == steps // 2:
                with ls.tracing(model) as trace:
                    loss = training.loss(model, batch)
                    loss.backward()
                trace.save(folder, step=step)
            else:
                loss = training.loss(model, batch)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            evaluated = {"eval_loss": _evaluated(training, model)} if step % 5 == 0 else {}
            run.step(loss=loss, **evaluated)
            yield step


def _evaluated(training: Training, model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        loss = training.loss(model, training.inputs())
    model.train()
    return loss
