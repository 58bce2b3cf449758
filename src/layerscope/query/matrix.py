"""One statistic of every tensor of a kind over all steps, as a matrix: what heat maps are cut from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.query import rows
from layerscope.records import Floats, Ids, Ints
from layerscope.stats import derive
from layerscope.store.columns import values
from layerscope.store.reader import Reader

Cells = npt.NDArray[np.float32]
States = npt.NDArray[np.uint8]

#: What a cell holds, the more important the larger: of several cells drawn as one, the largest state wins.
MISSING, VALUE, INF, NAN = 0, 1, 2, 3
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Question:
    """Which tensors, and what of them."""

    kind: str
    stat: str
    mode: str = "train"
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Matrix:
    """Column i belongs to tensors[i], in the order of their first appearance, row j to steps[j], ascending.

    Steps are the rows, since that is what is cut to the screen.
    """

    question: Question
    tensors: tuple[tuple[str, str], ...]  # site and port
    steps: Ints
    values: Cells  # (steps, tensors), NaN where there is none
    states: States


@dataclass(frozen=True, slots=True)
class _Found:
    """The statistic of some rows of the store, as they lie."""

    session: int
    series: Ids
    steps: Ints
    values: Cells
    states: States


def matrix(reader: Reader, question: Question) -> Matrix:
    """The statistic of all tensors of one kind, mode and rank; of a tensor's data types the newest counts."""
    series = reader.series()
    chosen = series.filter(pa.array(_asked_for(series, question)))
    numbers = values(chosen["series"])
    of_series = list(zip(chosen["site"].to_pylist(), chosen["port"].to_pylist(), strict=True))
    tensors: tuple[tuple[str, str], ...] = tuple(dict.fromkeys(of_series))
    place = {tensor: at for at, tensor in enumerate(tensors)}
    column_of = np.zeros(1 + int(numbers.max(initial=0)), np.int64)
    column_of[numbers] = [place[tensor] for tensor in of_series]
    found = [*_found(reader, numbers, question)]
    steps = np.unique(np.concatenate([np.zeros(0, np.int64), *(_distinct(part.steps) for part in found)]))
    shape = (len(steps), len(tensors))
    cells, states = np.full(shape, np.nan, np.float32), np.zeros(shape, np.uint8)
    for part in sorted(found, key=lambda part: part.session):  # what a later session recorded again is written over
        at = _places(part.steps, steps) * len(tensors) + column_of[part.series]
        cells.reshape(-1)[at], states.reshape(-1)[at] = part.values, part.states
    pa.default_memory_pool().release_unused()  # a long run leaves a hundred megabytes there
    return Matrix(question, tensors, steps, cells, states)


def _asked_for(series: pa.Table, question: Question) -> npt.NDArray[np.bool_]:
    mine = rows.are(series, "kind", question.kind) & rows.are(series, "mode", question.mode)
    return np.asarray(mine & (values(series["rank"]) == question.rank))


def _found(reader: Reader, numbers: Ids, question: Question) -> Iterator[_Found]:
    """The statistic and the state of every row, file by file and session by session."""
    if question.stat not in derive.STATS:
        table = reader.extras(numbers, None, [question.stat])
        own = values(table["value"])
        states = np.select([np.isnan(own), np.isinf(own)], [NAN, INF], VALUE).astype(np.uint8)
        yield from _by_session(table, _narrow(own), states, question.rank)
        return
    columns = list(dict.fromkeys((*rows.columns_for([question.stat]), "count", "finite", "nan")))
    for table in reader.moments_by_file(numbers, columns):
        of = {name: values(table[name]) for name in columns}
        statistic = derive.statistic(question.stat, lambda name: np.asarray(of[name], np.float64))  # noqa: B023
        states = (~np.isnan(statistic)).view(np.uint8)  # MISSING or VALUE
        broken = of["finite"] < of["count"]
        if broken.any():
            states[broken] = np.where(of["nan"][broken] > 0, NAN, INF)
        yield from _by_session(table, _narrow(statistic), states, question.rank)


def _by_session(table: pa.Table, cells: Cells, states: States, rank: int) -> Iterator[_Found]:
    sessions, mine = values(table["session"]), values(table["rank"]) == rank
    for session in _distinct(sessions).tolist():
        kept = np.flatnonzero(mine & (sessions == session))
        at = slice(None) if len(kept) == len(mine) else kept
        yield _Found(
            session, values(table["series"])[at].copy(), values(table["step"])[at].copy(), cells[at], states[at]
        )


def _narrow(found: Floats) -> Cells:
    return np.clip(found, -LARGEST, LARGEST).astype(np.float32)


def _distinct(numbers: Ints | Ids) -> Ints:
    """The numbers that occur, ascending: quicker than sorting where there are few of many."""
    if len(numbers) == 0 or int(numbers.max()) - int(numbers.min()) > 4 * len(numbers) + 1000:
        return np.unique(numbers).astype(np.int64)
    least = int(numbers.min())
    present = np.zeros(int(numbers.max()) - least + 1, np.bool_)
    present[numbers - least] = True
    return np.asarray(np.flatnonzero(present) + least)


def _places(step: Ints, steps: Ints) -> Ints:
    """The place of each row's step among the steps."""
    if len(steps) == 0 or steps[-1] - steps[0] > 4 * len(step) + 1000:
        return np.searchsorted(steps, step)
    place = np.zeros(int(steps[-1] - steps[0]) + 1, np.int64)
    place[steps - steps[0]] = np.arange(len(steps))
    return np.asarray(place[step - steps[0]])
