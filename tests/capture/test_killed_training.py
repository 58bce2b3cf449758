"""A training killed at any moment leaves a run that opens, with true numbers."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import layerscope as ls

KILLS = 50


def train(folder: Path, steps: int) -> list[float]:
    """A small training, the same every time."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    with ls.watch(model, optimizer, to=folder, every=1) as run:
        for _ in range(steps):
            loss = model(torch.randn(32, 6)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            run.step(loss=loss)
    return losses


def killed_after(seconds: float, folder: Path) -> None:
    """Train in a child process and kill it once it has computed for so long, however busy the machine is.

    It is forked, since loading torch anew takes longer than the training.
    """
    child = os.fork()
    if child == 0:
        try:
            train(folder, steps=1_000_000)
        finally:
            os._exit(1)
    computed = Path(f"/proc/{child}/schedstat")  # nanoseconds, and more
    while int(computed.read_text().split()[0]) < seconds * 1e9:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.slow
def test_a_training_killed_at_any_moment_opens_again_with_true_numbers(tmp_path: Path) -> None:
    torch.set_num_threads(1)  # a forked child has no thread pool to wait for
    truth = np.array(train(tmp_path / "whole", steps=4000))
    moments = random.Random(1)
    recorded = 0
    for kill in range(KILLS):
        folder = tmp_path / f"killed-{kill}"
        killed_after(moments.uniform(0.02, 1.2), folder)
        if not (folder / "run.json").exists():
            continue  # killed before there was a run
        run = ls.open(folder)
        metrics = run.metrics()
        losses = metrics["loss"] if len(metrics) else []
        assert losses == truth[: len(losses)].tolist()
        stats = run.stats("(model)", stat="count") if "(model)" in run.series()["site"] else None
        assert stats is None or stats["step"] == list(range(len(stats)))
        assert run.status() == "stopped"
        recorded += bool(losses)
    assert recorded >= KILLS // 3
