"""What a trace costs beyond the plain forward: one thread, CPU time, interleaved, medians.

python -m benchmarks.trace [--json PATH] [--repeat 7] [--torchlens PYTHON]

PYTHON is the interpreter of another environment in which torchlens and transformers are installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.trace_subjects import SUBJECTS, Subject, loop
from layerscope.capture.torch.trace.describe import describe
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.query.layers import name_layers
from layerscope.viz.graph import DrawOptions, graph_view
from layerscope.viz.svg import svg

Row = dict[str, str]
FIRST_TRACE = """
import time, torch
from torch import nn
from layerscope.capture.torch.trace.describe import describe
from layerscope.capture.torch.trace.tracer import Tracer
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10), nn.Dropout())
x = torch.randn(2, 3, 8, 8)
model(x)
for _ in range(2):
    began = time.perf_counter()
    with Tracer(model, keep=True) as tracer:
        model(x)
    describe(tracer, "model", None, None)
    print(time.perf_counter() - began)
"""


def interleaved(tasks: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Median CPU seconds of each task; each round runs all of them, so that a slow moment hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeat + 1):
        for name, task in tasks.items():
            began = time.process_time()
            task()
            taken[name].append(time.process_time() - began)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def traced(subject: Subject, *, keep: bool, gradients: bool = True) -> Callable[[], Tracer]:
    def run() -> Tracer:
        with Tracer(subject.model, keep=keep, gradients=gradients) as tracer:
            subject.model(*subject.inputs)
        return tracer

    return run


def looked_up(subject: Subject) -> Callable[[], object]:
    """Trace, record, and the names of all layers."""

    def run() -> object:
        return name_layers(describe(traced(subject, keep=True)(), "model", None, None))

    return run


def in_words(subject: Subject) -> Callable[[], object]:
    """The same, and every operation's record."""

    def run() -> object:
        record = describe(traced(subject, keep=True)(), "model", None, None)
        return name_layers(record), tuple(record.operations)

    return run


def plain(subject: Subject) -> Callable[[], object]:
    return lambda: subject.model(*subject.inputs)


def row(what: str, measured: str, limit: str = "", *, kept: bool = True) -> Row:
    return {"what": what, "measured": measured, "limit": limit, "kept": "" if not limit else "yes" if kept else "NO"}


def loops(repeat: int) -> list[Row]:
    rows = []
    per_op: dict[tuple[str, int], float] = {}
    for operations in (1000, 2000, 10_000):
        subject = loop(operations)
        taken = interleaved(
            {
                "metadata only": traced(subject, keep=False),
                "saving everything": traced(subject, keep=True),
                "with record and names": looked_up(subject),
                "plain": plain(subject),
            },
            repeat,
        )
        for kind, limit in (("metadata only", 15), ("saving everything", 20), ("with record and names", 20)):
            cost = per_op[kind, operations] = (taken[kind] - taken["plain"]) / operations * 1e6
            rows.append(
                row(f"loop of {operations:,}, {kind}", f"{cost:.1f} µs per op", f"{limit} µs", kept=cost <= limit)
            )
    for kind in ("metadata only", "saving everything", "with record and names"):
        growth = per_op[kind, 10_000] / per_op[kind, 1000]
        rows.append(row(f"cost per op at 10,000 against 1,000, {kind}", f"{growth:.2f} ×", "1.3 ×", kept=growth <= 1.3))
    return rows


def gradients(repeat: int) -> list[Row]:
    rows = []
    for operations in (2000, 10_000):
        subject = loop(operations)
        subject.inputs[0].requires_grad_()
        with torch.enable_grad():
            taken = interleaved(
                {
                    "plain": plain(subject),
                    "without": traced(subject, keep=True, gradients=False),
                    "with": traced(subject, keep=True),
                },
                repeat,
            )
        cost = (taken["with"] - taken["without"]) / operations * 1e6
        rows.append(row(f"loop of {operations:,} with grad: catching gradients", f"{cost:.1f} µs per op"))
    return rows


def models(repeat: int) -> tuple[list[Row], dict[str, tuple[float, float]]]:
    """Rows, and the seconds added to each subject: by the trace, and by the trace with its record and names."""
    rows: list[Row] = []
    added: dict[str, tuple[float, float]] = {}
    for name, make in SUBJECTS.items():
        subject = make()
        tasks = {
            "plain": plain(subject),
            "trace": traced(subject, keep=True),
            "names": looked_up(subject),
            "words": in_words(subject),
        }
        taken = interleaved(tasks, repeat)
        whole, words = taken["names"] - taken["plain"], taken["words"] - taken["plain"]
        added[name] = taken["trace"] - taken["plain"], whole
        if name == "GPT-2":
            ratio = taken["trace"] / taken["plain"]
            rows.append(row("GPT-2 traced, against plain", f"{ratio:.2f} ×", "1.3 ×", kept=ratio <= 1.3))
            with torch.enable_grad():
                taken = interleaved({"plain": plain(subject), "trace": traced(subject, keep=True)}, repeat)
            rows.append(row("GPT-2 with grad, catching gradients", f"{taken['trace'] / taken['plain']:.2f} ×"))
        limit = {"loop of 2,000": 0.2, "GPT-2": 0.5, "Swinv2-base": 0.5}[name]
        rows.append(row(f"{name}: trace, record and names", f"{whole:.3f} s", f"{limit} s", kept=whole < limit))
        rows.append(row(f"{name}: and every operation in words", f"{words:.3f} s"))
    return rows, added


def first_trace(repeat: int) -> list[Row]:
    excess = []
    for _ in range(max(3, repeat // 2)):
        done = subprocess.run([sys.executable, "-c", FIRST_TRACE], capture_output=True, text=True, check=True)
        first, second = map(float, done.stdout.split())
        excess.append((first - second) * 1000)
    middle = statistics.median(excess)
    return [row("first trace of a process, beyond the second", f"{middle:.0f} ms", "50 ms", kept=middle <= 50)]


def memory() -> list[Row]:
    run = traced(loop(10_000), keep=False)
    run()
    tracemalloc.start()
    tracer = run()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return [row("memory for names and places", f"{held / len(tracer.ops.nodes):.0f} bytes per op")]


PEAK = """
import pathlib, re, sys, torch
def most():  # not ru_maxrss, which starts from the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
from layerscope.capture.torch.trace.tracer import Tracer
torch.set_num_threads(1)
layers = [torch.nn.Linear(1000, 1000) for _ in range(100)]
x = torch.randn(2000, 1000)
layers[0](x)
kept, before = [], most()
with torch.no_grad():
    if sys.argv[1] == "trace":
        with Tracer(None, keep=True) as tracer:
            for layer in layers:
                x = layer(x)
    else:
        for layer in layers:
            x = layer(x)
            kept.append(x)
print(most() - before)
"""


def peak() -> list[Row]:
    """The most memory a trace with values takes, against the plain outputs kept in a list."""
    taken: dict[str, list[int]] = {"plain": [], "trace": []}
    for way in (*taken, *taken, *taken):
        done = subprocess.run([sys.executable, "-c", PEAK, way], capture_output=True, text=True, check=True)
        taken[way].append(int(done.stdout))
    beyond = statistics.median(taken["trace"]) / statistics.median(taken["plain"]) - 1
    return [row("peak memory, beyond the kept outputs", f"{100 * beyond:.1f} %", "10 %", kept=beyond <= 0.1)]


def drawing() -> list[Row]:
    rows = []
    for name, limit in (("GPT-2", 1.0), ("Swinv2-base", 3.0)):
        record = describe(traced(SUBJECTS[name](), keep=False)(), name, None, None)
        naming = name_layers(record)
        for what, options in (("", DrawOptions()), (", at full depth", DrawOptions(depth=99))):
            task = partial(lambda *given: svg(graph_view(*given)), record, naming, options)
            taken = interleaved({"svg": task}, 3)["svg"]
            rows.append(row(f"{name} as SVG{what}", f"{taken:.2f} s", f"{limit:g} s", kept=taken <= limit))
    return rows


def against_torchlens(python: str, added: dict[str, tuple[float, float]], repeat: int) -> list[Row]:
    script = Path(__file__).with_name("trace_torchlens.py")
    done = subprocess.run([python, str(script), str(max(1, repeat // 3))], capture_output=True, text=True, check=True)
    theirs: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    rows = []
    for name, seconds in theirs.items():
        wanted = 100 if name.startswith("loop") else 20
        trace, whole = (seconds / ours for ours in added[name])
        rows.append(row(f"torchlens adds to {name}", f"{seconds:.2f} s"))
        rows.append(row(f"… against our trace of {name}", f"{trace:.0f} ×", f"{wanted} ×", kept=trace >= wanted))
        rows.append(
            row(
                f"… against our trace, record and names of {name}",
                f"{whole:.0f} ×",
                f"{wanted} ×",
                kept=whole >= wanted,
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--torchlens", metavar="PYTHON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = loops(options.repeat) + gradients(options.repeat)
        model_rows, added = models(options.repeat)
        rows += model_rows + first_trace(options.repeat) + memory() + peak() + drawing()
    if options.torchlens:
        rows += against_torchlens(options.torchlens, added, options.repeat)
    for line in rows:
        print(f"{line['what']:<60} {line['measured']:>24} {line['limit']:>9} {line['kept']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
