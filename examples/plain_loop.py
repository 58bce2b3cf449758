"""Watch a plain training loop; then query the layers with the smallest gradients by SQL."""

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Sigmoid())), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with ls.watch(model, optimizer, to="runs/plain-loop", every=5) as run:
    for _ in range(100):
        x = torch.randn(64, 32)
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)

recorded = ls.open("runs/plain-loop")
print(
    recorded.sql(
        "select site, avg(norm) as gradient from stats where kind = 'weight_grad' group by site order by gradient"
    )
)
