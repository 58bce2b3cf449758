"""Updates that are too large: AdamW with the learning rate and the weight decay of another optimizer."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=1.0)  # the fault
kinds = ("output", "weight", "weight_grad", "update")

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/large-update", every=1, kinds=kinds) as run:
    for _ in range(60):
        x = torch.randn(64, 16)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
