"""Small models, each with something that is easy to get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


class InPlaceCnn(nn.Module):
    """In-place activation, residual `+=`, batch norm buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.conv1(x.view(-1, 1, 2, 3))))
        y = self.conv2(x)
        y += x
        result: Tensor = self.head(self.relu(y).mean((2, 3)))
        return result


class Recurrent(nn.Module):
    """An LSTM (a tuple in a tuple), a cell applied in a loop, a module called with keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 8, batch_first=True)
        self.cell = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, (hidden, _) = self.lstm(x.view(-1, 3, 2))
        state = hidden[0]
        for _ in range(3):
            state = torch.tanh(self.cell(input=state))
        result: Tensor = self.head(state + out[:, -1])
        return result


@dataclass
class Answer:
    logits: Tensor
    extra: dict[str, Tensor | None]


class Structured(nn.Module):
    """Gives a dataclass that holds a dict that holds None."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Answer:
        logits = self.inner(x)
        return Answer(logits, {"positive": logits.relu(), "nothing": None})


class Attention(nn.Module):
    """A transformer layer, which has a fused path in evaluation; shared (tied) weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.layer.linear1.weight if self.layer.linear1.weight.shape == (8, 8) else self.tied.weight
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.tied(self.layer(self.embed(x.view(-1, 3, 2)))).mean(1))
        return result


class Hooked(Mlp):
    """Carries a forward hook of the user's that replaces an output."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0].register_forward_hook(lambda module, args, output: output * 2)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": Mlp,
    "in_place_cnn": InPlaceCnn,
    "recurrent": Recurrent,
    "attention": Attention,
    "hooked": Hooked,
}


class Tiny(nn.Module):
    """A model of the transformers library, small, from its configuration; gives its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(**inputs).logits
        return logits


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    model: nn.Module = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]  # it ships no types
    return Tiny(model.train())


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
        hidden_dropout_prob=0.1,
    )
    return Tiny(ViTForImageClassification(config).train())
