"""NaN in a forward: the logarithm of a probability that is 0 for one batch."""

import sys

import torch
from torch import Tensor, nn

import layerscope as ls


class LogProbability(nn.Module):
    """The fault: softmax underflows to 0 if logits are far apart, and 0 · log 0 is NaN."""

    def forward(self, logits: Tensor) -> Tensor:
        """The terms of the entropy, one per class."""
        probability = logits.softmax(1)
        return probability * probability.log()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4), LogProbability())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/nan-forward", every=1) as run:
    for step in range(40):
        x = torch.randn(64, 8)
        if step == 25:
            with torch.no_grad():
                model[2].bias[0] += 200.0  # one class becomes certain
        loss = -model(x).sum(1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
