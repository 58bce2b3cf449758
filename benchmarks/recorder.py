"""What naming tensors in a training costs beyond the plain one: one thread, interleaved, medians of ratios.

python -m benchmarks.recorder [--json PATH] [--repeat 15]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import layerscope
from benchmarks.watch import MB, Row, flush, ratio_row, row
from benchmarks.watch_subjects import STEPS, SUBJECTS, Training, Watched, against_plain
from layerscope import Detail, Schedule
from layerscope.capture.core.recorder import Recorder


@dataclass(frozen=True)
class Case:
    """How much is kept of every output of a leaf module, and the most it may take against the plain step."""

    what: str
    subject: str
    limit: float | None
    options: dict[str, Any]
    steps: int | None = None  # in a row


CASES = (
    Case("every leaf output, statistics and gradients", "GPT-2", 1.5, {"every": 1, "depth": "statistics"}),
    Case("a step that is not recorded", "GPT-2", 1.01, {"every": Schedule(steps=[0])}, steps=10),
    Case("every leaf output, all values of 5 samples, and gradients", "MLP", 3, {"every": 1}),
    Case("every leaf output, every value, and gradients", "MLP", None, {"every": 1, "depth": "all"}),
    Case("the same, each step held in a ring of 5", "MLP", None, {"every": Schedule(steps=[0]), "ring": 5}),
    Case("a step that is not recorded", "MLP", None, {"every": Schedule(steps=[0])}),
)


def leaves(model: nn.Module, run: Callable[[], Recorder]) -> list[Any]:
    """Hooks that name the output of every leaf module, as a user would in a forward of their own."""

    def name(path: str, module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor):
            run().record(path, output)

    return [
        module.register_forward_hook(partial(name, path))
        for path, module in model.named_modules()
        if not any(True for _ in module.children())
    ]


@contextmanager
def named(training: Training, folder: str, **options: Any) -> Iterator[Watched]:
    to = Path(tempfile.mkdtemp(dir=folder)) / "run"
    with layerscope.watch(training.model, training.optimizer, to=to, kinds="tensor*", **options) as run:
        handles = leaves(training.model, lambda: run)
        for _ in range(6):  # until the dependencies are known
            run.begin()
            run.step(loss=training.step())

        def step() -> None:
            run.begin()
            run.step(loss=training.step())

        yield Watched(step, partial(flush, run))
        for handle in handles:
            handle.remove()


def steps(repeat: int) -> list[Row]:
    rows = []
    for case in CASES:
        training = SUBJECTS[case.subject]()
        with tempfile.TemporaryDirectory() as folder:
            watching = partial(named, training, folder, **case.options)
            found = against_plain(training.step, watching, repeat, case.steps or STEPS[case.subject])
        rows.append(ratio_row(f"{case.subject}: {case.what}", found, case.limit))
    return rows


def disk() -> list[Row]:
    """Bytes of a run against those of the values kept in it."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "run"
        kept = 0
        with layerscope.watch(None, to=to, every=1, detail=Detail("all", bytes_per_step=1 << 30)) as run:
            for _ in range(200):
                values = torch.randn(32, 1024)
                run.record("values", values)
                kept += values.nbytes
                run.step()
        size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
    return [
        row("bytes on disk against those of the kept values", f"{size / kept:.3f} ×", "1.1 ×", kept=size <= 1.1 * kept)
    ]


def memory() -> list[Row]:
    """What 10,000 recorded steps add to the memory that 1,000 have taken."""
    with tempfile.TemporaryDirectory() as folder:
        taken = {}
        with layerscope.watch(None, to=Path(folder) / "run", every=layerscope.Schedule(1, keep_last=3)) as run:
            for step in range(10_001):
                run.begin(f"type {step % 3}")
                x = run.record("x", torch.randn(8, 16, requires_grad=True))
                for _ in range(2):
                    with run.iteration():
                        run.record("y", x * 2, role=f"role {step % 7}")
                x.sum().backward()
                run.step(loss=float(step))
                if step in (1_000, 10_000):
                    taken[step] = resident()
    more = (taken[10_000] - taken[1_000]) / MB
    return [row("memory that 9,000 more recorded steps take", f"{more:.0f} MB", "32 MB", kept=more <= 32)]


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = memory() + steps(options.repeat) + disk()
    for line in rows:
        print(f"{line['what']:<90} {line['measured']:>45} {line['limit']:>9} {line['kept']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
