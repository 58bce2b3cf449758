"""What watching a training costs beyond the plain one: one thread, interleaved with the plain step, medians of ratios.

python -m benchmarks.watch [--json PATH] [--repeat 15] [--peers PYTHON]

PYTHON is the interpreter of another environment with transformers and whichever peers are to be measured: wandb,
tensorboard, and torchexplorer, which needs Graphviz's `dot` on the path or beside that interpreter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import layerscope
from benchmarks.watch_subjects import STEPS, SUBJECTS, Times, Training, Watched, against_plain
from layerscope import Schedule
from layerscope.capture.core.recorder import Recorder
from layerscope.store.writer import QUEUE_BYTES, FolderSink

Row = dict[str, str]
MB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A way of watching, and the most it may take against the plain step."""

    what: str
    subject: str
    limit: float | None
    options: dict[str, Any]
    steps: int | None = None  # in a row
    rounds: int = 1  # as often as others are repeated


CASES = (
    Case("default kinds at every step", "GPT-2", 1.25, {"every": 1}),
    Case("all kinds at every step", "GPT-2", 1.6, {"every": 1, "kinds": "all"}),
    Case("default kinds, `every=10`, on average", "GPT-2", 1.04, {"every": 10}, steps=10),
    Case("a step that is not recorded", "GPT-2", 1.01, {"every": Schedule(steps=[0])}, steps=10, rounds=2),
    Case("default kinds, `Schedule(1, budget=0.02)`", "GPT-2", 1.02, {"every": Schedule(1, budget=0.02)}, steps=30),
    Case("default kinds at every step", "torch's transformer", None, {"every": 1}),
    Case("default kinds at every step", "MLP", 2.5, {"every": 1}),
    Case("all kinds at every step", "MLP", None, {"every": 1, "kinds": "all"}),
    Case("a step that is not recorded", "MLP", None, {"every": Schedule(steps=[0])}, rounds=20),
    Case(
        "default kinds, `Schedule(1, budget=0.02)`",
        "MLP",
        1.02,
        {"every": Schedule(1, budget=0.02)},
        steps=1000,
        rounds=12,
    ),
)


def row(what: str, measured: str, limit: str = "", *, kept: bool = True) -> Row:
    return {"what": what, "measured": measured, "limit": limit, "kept": "" if not limit else "yes" if kept else "NO"}


def ratio_row(what: str, found: Times, limit: float | None = None) -> Row:
    bound = "" if limit is None else f"{limit:g} ×"
    digits = 3 if limit is not None and limit < 1.1 else 2
    measured = f"{found.cpu:.{digits}f} × processor time, {found.wall:.{digits}f} × time"
    return row(what, measured, bound, kept=limit is None or found.cpu <= limit)


def flush(run: Recorder) -> None:
    """Have all written that was recorded."""
    assert isinstance(run._sink, FolderSink)
    run._sink.flush()


@contextmanager
def watched(training: Training, folder: str, **options: Any) -> Iterator[Watched]:
    """A run of its own each time; what is done at its end, such as compaction, is not part of any step."""
    to = Path(tempfile.mkdtemp(dir=folder)) / "run"
    with layerscope.watch(training.model, training.optimizer, to=to, **options) as run:
        yield Watched(lambda: run.step(loss=training.step()), partial(flush, run))


def steps(repeat: int) -> Iterator[Row]:
    for case in CASES:
        training = SUBJECTS[case.subject]()
        with tempfile.TemporaryDirectory() as folder:
            watching = partial(watched, training, folder, **case.options)
            few = case.steps or STEPS[case.subject]
            found = against_plain(training.step, watching, case.rounds * repeat, few)
        yield ratio_row(f"{case.subject}: {case.what}", found, case.limit)


PEAK = """
import pathlib, re, sys, torch
from benchmarks.watch_subjects import SUBJECTS
torch.set_num_threads(1)
training = SUBJECTS["GPT-2"]()
if sys.argv[1] == "plain":
    for _ in range(10):
        training.step()
else:
    import layerscope
    kinds = {} if sys.argv[1] == "default" else {"kinds": "all"}
    with layerscope.watch(training.model, training.optimizer, to=sys.argv[2], every=1, **kinds) as run:
        for _ in range(10):
            run.step(loss=training.step())
most = re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]
print(int(most) << 10)  # not ru_maxrss, which starts from the parent's
"""


def memory() -> list[Row]:
    """The most that was ever in memory, to the end of the process, beyond that of the plain training."""
    taken: dict[str, list[int]] = {"plain": [], "default": [], "all": []}
    for kinds in (*taken, *taken, *taken):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", PEAK, kinds, f"{folder}/run"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        taken[kinds].append(int(done.stdout.splitlines()[-1]))
    plain = statistics.median(taken.pop("plain"))
    weights = sum(parameter.nbytes for parameter in SUBJECTS["GPT-2"]().model.parameters())
    bounds = {"default": 50 * MB + QUEUE_BYTES, "all": 50 * MB + QUEUE_BYTES + weights}
    return [
        row(
            f"GPT-2, {kinds} kinds: peak memory beyond the plain training's, the libraries included",
            f"{(statistics.median(peaks) - plain) / MB:.0f} MB",
            f"{bounds[kinds] / MB:.0f} MB",
            kept=statistics.median(peaks) - plain <= bounds[kinds],
        )
        for kinds, peaks in taken.items()
    ]


def disk() -> list[Row]:
    training = SUBJECTS["GPT-2"]()
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "run"
        with layerscope.watch(training.model, training.optimizer, to=to, every=1, kinds="all") as run:
            for _ in range(20):
                run.step(loss=training.step())
        size = sum(path.stat().st_size for path in to.rglob("*") if path.is_file())
        made = sum(layerscope.open(to).overhead().arrow()["summaries"].to_pylist())
    per = size / made
    what = "GPT-2, all kinds: bytes on disk per summary, compacted"
    return [row(what, f"{per:.0f} bytes", "500 bytes", kept=per <= 500)]


def peers(python: str, repeat: int) -> list[Row]:
    script = Path(__file__).with_name("watch_peers.py")
    done = subprocess.run([python, str(script), str(repeat)], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return [
        row(f"{subject}: {peer}", f"none: {figures['error']}")
        if "error" in figures
        else ratio_row(f"{subject}: {peer}", Times(**figures))
        for peer, subjects in found.items()
        for subject, figures in subjects.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--peers", metavar="PYTHON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts: list[Callable[[], Iterable[Row]]] = [partial(steps, options.repeat), memory, disk]
    if options.peers:
        parts.append(partial(peers, options.peers, max(1, options.repeat // 3)))
    rows = []
    for line in chain.from_iterable(part() for part in parts):
        print(f"{line['what']:<90} {line['measured']:>45} {line['limit']:>9} {line['kept']}", flush=True)
        rows.append(line)
        if options.json:  # what is measured is kept, whatever becomes of the rest
            options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
