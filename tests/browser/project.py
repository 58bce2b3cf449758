"""Made runs whose faults are known: several sites, one of which goes wrong at a known step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from layerscope.model.records import Event, Kind, Metric, Mode, Phase, Series
from layerscope.store.folder import create
from layerscope.store.writer import FolderSink
from tests.server.runs import summaries

SITES = ("embed", "h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "head")


def write_layers(
    folder: Path,
    *,
    steps: int = 30,
    nan_at: int | None = None,
    scale: float = 1.0,
    sites: Sequence[str] = SITES,
) -> Path:
    """A finished run of some sites; from `nan_at` on, `h.1.attn` and what follows it hold NaN, and so does the loss."""
    sink = FolderSink(create(folder))
    numbers = [
        sink.series_id(Series(site, "output.0", Kind.OUTPUT, Mode.TRAIN, Phase.FORWARD, "float64", (40,)))
        for site in sites
    ]
    rng = np.random.default_rng(0)
    for step in range(steps):
        tensors = [rng.normal(0, scale * (at + 1), 40) for at in range(len(sites))]
        broken = nan_at is not None and step >= nan_at
        for at, site in enumerate(sites):
            if broken and site in ("h.1.attn", "h.1.mlp", "head"):
                tensors[at][:5] = np.nan
        sink.put(summaries(step, numbers, tensors))
        sink.put(Metric(step, "loss", float("nan") if broken else 1.0 / (step + 1), float(step)))
    sink.put(Event(3, "note", "a new learning rate", 3.0))
    sink.put(Event(steps - 1, "info", "Recording ended.", float(steps)))
    sink.close()
    return folder
