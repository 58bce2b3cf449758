"""Gradients that vanish: a deep network of sigmoids, each of which passes at most a quarter of the gradient."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
layers = (layer for _ in range(10) for layer in (nn.Linear(32, 32), nn.Sigmoid()))  # the fault
model = nn.Sequential(*layers, nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/vanishing", every=2) as run:
    for _ in range(60):
        x = torch.randn(64, 32)
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
