"""Draw six models from one forward pass each: the pictures of docs/gallery.md."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTModel

import layerscope as ls


class Residual(nn.Module):
    """A residual block, with a projection if the width changes."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        stride = 1 if width_in == width else 2
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.project = nn.Conv2d(width_in, width, 1, stride, bias=False) if stride == 2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The input, projected if needed, plus two convolutions."""
        hidden = self.relu(self.norm1(self.conv1(x)))
        hidden = self.norm2(self.conv2(hidden))
        hidden += self.project(x)
        return self.relu(hidden)


class UNet(nn.Module):
    """Down, across and up again, with skip connections between equal sizes."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(1, width, 3, padding=1)
        self.down2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.across = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up2 = nn.Conv2d(4 * width, width, 3, padding=1)
        self.up1 = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """An image of the same size."""
        first = torch.relu(self.down1(x))
        second = torch.relu(self.down2(nn.functional.max_pool2d(first, 2)))
        bottom = torch.relu(self.across(nn.functional.max_pool2d(second, 2)))
        wide = nn.functional.interpolate(bottom, scale_factor=2)
        hidden = torch.relu(self.up2(torch.cat((wide, second), 1)))
        return self.up1(torch.cat((nn.functional.interpolate(hidden, scale_factor=2), first), 1))


class Recurrent(nn.Module):
    """A cell applied in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The output after the last step."""
        state = x.new_zeros(len(x), 16)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=32, vocab_size=64, bos_token_id=0, eos_token_id=0))
    vit = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64))
    image, tokens = torch.rand(1, 3, 224, 224), torch.randint(64, (2, 16))
    resnet = nn.Sequential(Residual(8, 8), Residual(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    ls.draw(resnet, torch.rand(2, 8, 16, 16), to=folder / "resnet.svg")
    ls.draw(UNet(), torch.rand(1, 1, 16, 16), to=folder / "unet.svg")
    ls.draw(Recurrent(), torch.rand(2, 5, 8), to=folder / "gru.svg")
    ls.draw(gpt2, tokens, to=folder / "gpt2.svg", depth=2)
    ls.draw(gpt2, tokens, to=folder / "gpt2-block.svg", focus="transformer.h.1", color_by="elapsed_s")
    ls.draw(vit, image, to=folder / "vit.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("gallery"))
