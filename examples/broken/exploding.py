"""Gradients that explode: a learning rate above what the curvature allows makes every step overshoot further."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1.2)  # the fault

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/exploding", every=1) as run:
    for _ in range(80):
        x = torch.randn(64, 16)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
