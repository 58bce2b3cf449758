"""Reads everything a reader can read of a run, as one digest for each question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path

import numpy as np

from layerscope.diagnose.rules import check
from layerscope.errors import LayerscopeError
from layerscope.query.tables import Table
from layerscope.runs import Run
from layerscope.store.reader import arrays_of, numbers_of

ERROR = "error: "


class Answers(dict[str, str]):
    """The digest of every answer, or the error in its place; and what the run said of problems after them."""

    problems: tuple[str, ...] = ()

    def silently_other(self, sound: Answers) -> list[str]:
        """Questions whose answer differs from that of the sound run, where nobody is told."""
        if self.problems:
            return []
        return [name for name, given in self.items() if given != sound[name] and not given.startswith(ERROR)]


def read_all(folder: Path) -> Answers:
    """The answers of a run. An error that is not one of ours passes through."""
    found = Answers()
    try:
        run = Run(folder)
    except LayerscopeError as error:
        return Answers({"open": f"{ERROR}{error}"})
    found["open"] = digest((run.reader.manifest.id, run.reader.manifest.name))
    for name, question in QUESTIONS.items():
        try:
            found[name] = digest(question(run))
        except LayerscopeError as error:
            assert str(error)
            found[name] = f"{ERROR}{error}"
    found.problems = tuple(run.problems)
    return found


QUESTIONS: dict[str, Callable[[Run], object]] = {
    "status": lambda run: run.status(),
    "last step": lambda run: run.last_step,
    "series": lambda run: run.series(),
    "stats": lambda run: run.stats(),
    "histograms": lambda run: run.histograms(bins=8),
    "quantiles": lambda run: run.quantiles(),
    "exponents": lambda run: run.exponents(),
    "history": lambda run: asdict(run.history(1, 0)),
    "values": lambda run: run.values(),
    "arrays": lambda run: arrays_of(run.reader.values()),
    "sample stats": lambda run: (run.reader.sample_stats().to_pydict(), numbers_of(run.reader.sample_stats())),
    "metrics": lambda run: run.metrics(),
    "steps": lambda run: run.steps(),
    "events": lambda run: run.events(),
    "cost": lambda run: run.overhead(),
    "dependencies": lambda run: run.named().graphs(),
    "graph": lambda run: run.graph(),
    "findings": lambda run: asdict(check(run.path)),
    "traces": lambda run: [
        (trace.record.operations, trace.record, trace.values, trace.gradients) for trace in run.traces()
    ],
}


def digest(content: object) -> str:
    """A short text that is another one if any number, text or order in the content is."""
    return hashlib.blake2b(_plain(content).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _plain(content: object) -> str:
    if isinstance(content, Table):
        return repr(content.arrow().to_pydict())
    if isinstance(content, np.ndarray):
        return f"{content.dtype}{content.shape}{content.tobytes()!r}"
    if is_dataclass(content) and not isinstance(content, type):
        return _plain({name: getattr(content, name) for name in content.__dataclass_fields__})
    if isinstance(content, dict):
        return "{" + ",".join(f"{key!r}:{_plain(each)}" for key, each in content.items()) + "}"
    if isinstance(content, list | tuple):
        return "[" + ",".join(map(_plain, content)) + "]"
    return repr(content)
