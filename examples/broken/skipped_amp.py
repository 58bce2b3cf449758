"""Updates that AMP skips, step after step: the gradient of a distance of 0 is not finite at any scale."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/skipped-amp", every=1) as run:
    for step in range(60):
        x = torch.randn(64, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        if step >= 20:
            drift = model[0].weight - model[0].weight.detach()
            loss = loss + drift.square().sum().sqrt()  # the fault: the root has no derivative at 0
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        run.step(loss=loss)
