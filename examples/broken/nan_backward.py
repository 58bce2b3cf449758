"""NaN in a backward: the forward is finite, but the square root has no derivative at 0."""

import sys

import torch
from torch import Tensor, nn

import layerscope as ls


class Length(nn.Module):
    """The fault: no small number under the root, so that its derivative at 0 is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        """The length of each row."""
        return x.square().sum(1, keepdim=True).sqrt()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 16, bias=False), Length())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kinds = ("output", "output_grad", "weight", "weight_grad")

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/nan-backward", every=1, kinds=kinds) as run:
    for step in range(40):
        x = torch.randn(64, 8)
        if step == 25:
            with torch.no_grad():
                model[0].weight.zero_(), model[0].bias.zero_()  # the length is 0 for any input
        loss = (model(x) - 1.0).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
