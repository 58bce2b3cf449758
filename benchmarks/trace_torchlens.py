"""Seconds that torchlens adds to each subject, as JSON; run by the trace benchmark in an environment that has it."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import torchlens  # type: ignore[import-not-found]
from trace_subjects import SUBJECTS, Subject  # type: ignore[import-not-found]


def cpu_seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def added(subject: Subject, repeat: int) -> float:
    """Seconds beyond the plain forward; the first call, in which it patches torch, is not counted."""
    record = getattr(torchlens, "trace", None) or torchlens.log_forward_pass
    plain, traced = [], []
    for _ in range(repeat + 1):
        plain.append(cpu_seconds(lambda: subject.model(*subject.inputs)))
        traced.append(cpu_seconds(lambda: record(subject.model, subject.inputs)))
    return statistics.median(traced[1:]) - statistics.median(plain[1:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        print(json.dumps({name: added(make(), int(sys.argv[1])) for name, make in SUBJECTS.items()}))
