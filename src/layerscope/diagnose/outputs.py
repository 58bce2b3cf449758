"""Activations that carry nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from layerscope.diagnose.finding import Finding, Severity, figure
from layerscope.diagnose.recording import FEWEST_STEPS, Flags, Histories, Recording
from layerscope.records import Floats, Ints, Kind

DEAD_SHARE = 0.99  # of zeros in the output of a ReLU; sound ones were seen to reach 0.9
RELU_LIKE = frozenset(("ReLU", "ReLU6", "Threshold", "Hardtanh", "Hardswish", "Hardsigmoid"))
LASTING = 0.2  # share of the training, up to its end, for which it must be so
FEWEST_ELEMENTS = 8  # of an output that may be called constant: a loss has one


def dead_units(recording: Recording) -> Iterator[Finding]:
    """Outputs of which (almost) nothing but zeros, or one same value, is left until the end."""
    found = recording.histories(Kind.OUTPUT)
    found = found.where("float" in place.dtype and place.whole for place in found.places)
    count, given = found.moments["count"], found.moments["count"] > 0
    share = np.divide(found.moments["zeros"], count, where=given, out=np.full(count.shape, np.nan))
    constant = (found.moments["min"] == found.moments["max"]) & (count >= FEWEST_ELEMENTS)
    dead = constant | (share >= DEAD_SHARE) & _rectified(recording, found)[:, None]
    since = _since(dead, given)
    lasting = np.array([np.count_nonzero(given[row, at:]) for row, at in enumerate(since)])
    rows = np.flatnonzero(lasting >= np.maximum(given.sum(axis=1) * LASTING, FEWEST_STEPS))
    if len(rows):
        yield _dead(found, rows[np.lexsort((rows, since[rows]))], since, share)


def _rectified(recording: Recording, found: Histories) -> Flags:
    """Which of the outputs are those of modules that make zeros."""
    graph = recording.reader.graph()
    classes = {module.path: module.class_name for module in graph.modules} if graph else {}
    return np.array([classes.get(place.site.partition("#")[0]) in RELU_LIKE for place in found.places], np.bool_)


def _since(dead: Flags, given: Flags) -> Ints:
    """The column from which on a row is dead whenever it is given; the number of columns where it is not."""
    alive = given & ~dead
    last = dead.shape[1] - 1 - alive[:, ::-1].argmax(axis=1)
    return np.where(alive.any(axis=1), last + 1, 0).astype(np.int64)


def _dead(found: Histories, rows: Ints, since: Ints, share: Floats) -> Finding:
    first, at = found.places[rows[0]], int(since[rows[0]])
    zeros = float(share[rows[0], at:][~np.isnan(share[rows[0], at:])].min())
    value = float(found.moments["max"][rows[0], -1])
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    amount, what = (
        ("Nothing", "all elements are 0")
        if zeros == 1
        else ("Next to nothing", f"{zeros:.2%} of the elements are 0")
        if zeros
        else ("One constant", f"all elements are {figure(value)}")
    )
    began = "from the start" if at == 0 else f"since step {found.steps[at]}"
    return Finding(
        rule="dead_units",
        severity=Severity.ERROR if zeros == 1 else Severity.WARNING,
        site=first.site,
        kind=Kind.OUTPUT.value,
        step=int(found.steps[at]),
        title=f"{amount} comes out of {first.site!r}{more}",
        why=f"In the output of {first.site!r} {what} {began}, whatever goes in, up to step {found.steps[-1]}: "
        f"{amount.lower() if zeros else 'nothing'} can be learned through it.",
        advice="Lower the learning rate, or the biases before it; LeakyReLU and GELU cannot die. If it died at one "
        "step, look at the batch and the gradients of that step.",
        evidence=tuple(found.evidence(int(row), int(since[row]), "zero_share", share[row, since[row]]) for row in rows),
    )
