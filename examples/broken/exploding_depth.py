"""Gradients that explode during the backward of a deep network, because its initial weights are too large."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
layers = [layer for _ in range(16) for layer in (nn.Linear(32, 32), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(32, 1))
for layer in layers[::2]:
    nn.init.normal_(layer.weight, std=1.0)  # the fault: 0.25 would keep the variance
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/exploding-depth", every=1) as run:
    for _ in range(30):
        x = torch.randn(64, 32)
        loss = (model(x) - x.mean(1, keepdim=True)).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
