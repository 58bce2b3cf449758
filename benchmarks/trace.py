"""What a trace costs beyond the plain forward: one thread, CPU time, interleaved, medians.

python -m benchmarks.trace [--json PATH] [--repeat 7] [--torchlens PYTHON]

PYTHON is the interpreter of another environment in which torchlens and transformers are installed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from benchmarks.trace_subjects import SUBJECTS, Subject, loop
from layerscope.capture.torch.trace.describe import describe
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.graph.layers import name_layers
from layerscope.views.draw.output import svg
from layerscope.views.draw.picture import DrawOptions, graph_view

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


class EmptyMode(TorchFunctionMode):
    """Intercepts and records nothing."""

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return function(*args, **(kwargs or {}))


class Rounds:
    """CPU seconds of several tasks, in rounds of all of them."""

    def __init__(self, taken: dict[str, list[float]]) -> None:
        self._taken = taken

    def seconds(self, task: str) -> float:
        """Median of a task."""
        return statistics.median(self._taken[task])

    def added(self, task: str, to: str = "plain") -> float:
        """Median of what a task took beyond another in the same round, so that a slow moment hits both."""
        return statistics.median(a - b for a, b in zip(self._taken[task], self._taken[to], strict=True))

    def ratio(self, task: str, to: str = "plain") -> float:
        """Median of a task's time over that of another in the same round."""
        return statistics.median(a / b for a, b in zip(self._taken[task], self._taken[to], strict=True))


def interleaved(tasks: dict[str, Callable[[], object]], repeat: int) -> Rounds:
    """All tasks in turn, as often as said and once before to warm up.

    What the process held before is taken out of the garbage collector's sight: now and then it would walk through
    torch's own half a million objects (0.1 s, once in about ten loops of 10,000), in whichever task comes just then.
    """
    gc.collect()
    gc.freeze()
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeat + 1):
        for name, task in tasks.items():
            began = time.process_time()
            task()
            taken[name].append(time.process_time() - began)
    gc.unfreeze()
    return Rounds({name: times[1:] for name, times in taken.items()})


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


def intercepted(subject: Subject) -> Callable[[], object]:
    """The least that seeing every operation costs: a mode that calls the function and does nothing else."""

    def run() -> object:
        with EmptyMode():
            return subject.model(*subject.inputs)

    return run


def plain(subject: Subject) -> Callable[[], object]:
    return lambda: subject.model(*subject.inputs)


def row(what: str, measured: str, limit: str = "", *, kept: bool = True) -> Row:
    return {"what": what, "measured": measured, "limit": limit, "kept": "" if not limit else "yes" if kept else "NO"}


def loops(repeat: int) -> list[Row]:
    limits = {"metadata only": 15, "saving everything": 20, "with record and names": 20}
    sizes = (1000, 2000, 10_000)
    tasks: dict[str, Callable[[], object]] = {}
    for subject, size in ((loop(size), size) for size in sizes):
        ways = (traced(subject, keep=False), traced(subject, keep=True), looked_up(subject))
        tasks[f"plain {size}"], tasks[f"empty {size}"] = plain(subject), intercepted(subject)
        tasks |= {f"{kind} {size}": way for kind, way in zip(limits, ways, strict=True)}
    rounds = interleaved(tasks, 3 * repeat)

    def per_op(kind: str, size: int) -> float:
        return rounds.added(f"{kind} {size}", f"plain {size}") / size * 1e6

    rows = []
    for size in sizes:
        least = per_op("empty", size)
        rows.append(row(f"loop of {size:,}, an empty mode of torch alone", f"{least:.1f} µs per op"))
        for kind, limit in limits.items():
            cost, bound = per_op(kind, size), f"{limit} µs" if size > 1000 else ""
            rows.append(row(f"loop of {size:,}, {kind}", f"{cost:.1f} µs per op", bound, kept=cost <= limit))
    for kind in limits:
        growth = per_op(kind, 10_000) / per_op(kind, 1000)
        rows.append(row(f"cost per op at 10,000 against 1,000, {kind}", f"{growth:.2f} ×", "1.3 ×", kept=growth <= 1.3))
    return rows


def gradients(repeat: int) -> list[Row]:
    rows = []
    for operations in (2000, 10_000):
        subject = loop(operations)
        subject.inputs[0].requires_grad_()
        ways = {"without": traced(subject, keep=True, gradients=False), "with": traced(subject, keep=True)}
        with torch.enable_grad():
            cost = interleaved({**ways}, repeat).added("with", "without") / operations * 1e6
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
        rounds = interleaved(tasks, repeat)
        whole, words = rounds.added("names"), rounds.added("words")
        added[name] = rounds.added("trace"), whole
        if name == "GPT-2":
            ratio = rounds.ratio("trace")
            rows.append(row("GPT-2 traced, against plain", f"{ratio:.2f} ×", "1.3 ×", kept=ratio <= 1.3))
            with torch.enable_grad():
                ratio = interleaved({"plain": plain(subject), "trace": traced(subject, keep=True)}, repeat).ratio(
                    "trace"
                )
            rows.append(row("GPT-2 with grad, catching gradients", f"{ratio:.2f} ×"))
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
    return [row("memory for names and places", f"{held / len(tracer.graph.nodes):.0f} bytes per op")]


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
            taken = interleaved({"svg": task}, 3).seconds("svg")
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
