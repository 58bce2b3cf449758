"""Matrix: one statistic of every tensor of a kind over all steps, for heat maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.model import summary_spec
from layerscope.model.records import Flags, Floats, Ids, Ints
from layerscope.query import tables as rows
from layerscope.query.history import read_history
from layerscope.stats import derived
from layerscope.store.reader import Reader, TableSource, in_threads

Numbers = npt.NDArray[Any]  # of any type that a column has
Cells = npt.NDArray[np.float32]
States = npt.NDArray[np.uint8]

#: What a cell holds, the more important the larger: of several cells drawn as one, the largest state wins.
MISSING, VALUE, INF, NAN = 0, 1, 2, 3
_NOT_FINITE = ("nan", "pos_inf", "neg_inf")
LARGEST = float(np.finfo(np.float32).max)


class _LostError(Exception):
    """Rows that a layout lists cannot be read any more: their cells stay empty."""


@dataclass(frozen=True, slots=True)
class Question:
    """The tensors and the statistic of a matrix."""

    kind: str
    stat: str
    mode: str = "train"
    rank: int = 0
    context: str = ""

    @property
    def setting(self) -> str:
        """Mode and context in words."""
        return f"mode {self.mode!r}, {f'context {self.context!r}' if self.context else 'outside any context'}"


@dataclass(frozen=True, slots=True)
class Matrix:
    """Column i belongs to tensors[i], row j to steps[j], ascending.

    Tensors stand as modules are called, whatever their kind: as the tree of all sites is read from top to bottom.
    Steps are the rows, since that is what is cut to the screen.
    """

    question: Question
    tensors: tuple[tuple[str, str], ...]  # site and port
    steps: Ints
    values: Cells  # (steps, tensors), NaN where there is none
    states: States

    def thinned(self, every: int) -> Matrix:
        """The first step of each `every` steps."""
        if every == 1:
            return self
        kept = rows.first_of_each(self.steps, every)
        return replace(self, steps=self.steps[kept], values=self.values[kept], states=self.states[kept])


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the moments of all tensors of a kind lie in the files, and where in a matrix they belong."""

    tensors: tuple[tuple[str, str], ...]
    steps: Ints
    states: States  # derived from the counts of elements
    rows: dict[
        TableSource, tuple[Ids | None, Ids | Ints]
    ]  # rows of a piece, None for all, and the places of their values

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        rows = (part.nbytes for pair in self.rows.values() for part in pair if part is not None)
        return self.states.nbytes + sum(rows)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of a piece: session, step, series, and the state that their counts give."""

    piece: TableSource
    row: Ids
    session: Ids
    steps: Ints
    series: Ids
    alias: Ids  # -1 for none
    states: States

    def part(self, which: Flags | Ints) -> _Rows:
        if which.dtype == np.bool_ and which.all():
            return self
        return _Rows(self.piece, *(getattr(self, field.name)[which] for field in fields(self)[1:]))


def matrix(reader: Reader, question: Question, layout: Callable[[], Layout] | None = None) -> Matrix:
    """The statistic of all tensors of one kind, mode, context and rank; of a tensor's data types the newest counts.

    Several questions about the same tensors can share the result of `laid_out`; the matrix then shows that time.
    """
    if question.stat not in derived.STATS:
        return _custom_statistic(reader, question)
    laid = laid_out(reader, question) if layout is None else layout()
    cells = np.full(laid.states.shape, np.nan, np.float32)
    needed = rows.columns_for([question.stat])
    first = [name for name in needed if name not in summary_spec.EXTREMES] or needed  # extremes are rarely looked at

    def fill(piece: TableSource) -> None:
        of: dict[str, Floats] = {}
        row, place = laid.rows[piece]
        most = len(place) if row is None else int(row.max(initial=-1)) + 1

        def column(name: str) -> Floats:
            if name not in of:
                names = first if name in first else [name]
                table = piece.read(names)
                if table.num_rows < most:
                    raise _LostError
                rows_then = min((len(known) for known in of.values()), default=table.num_rows)  # it may have grown
                of.update({each: _numbers(table[each])[:rows_then].astype(np.float64, copy=False) for each in names})
            return of[name]

        try:
            values = _narrow(derived.statistic(question.stat, column))
        except _LostError:  # the problems of the run name what is damaged
            return
        cells.reshape(-1)[place] = values[: len(place)] if row is None else values[row]

    in_threads(fill, list(laid.rows))
    states = laid.states.copy()
    states[np.isnan(cells) & (states == VALUE)] = MISSING
    return Matrix(question, laid.tensors, laid.steps, cells, states)


def laid_out(reader: Reader, question: Question) -> Layout:
    """The layout of the question's tensors; the same for every statistic."""
    tensors, column_of, _ = _columns(reader, question)
    numbers = np.flatnonzero(column_of >= 0).astype(np.int32)
    pieces = reader.moment_pieces(numbers)
    parts = in_threads(lambda piece: _rows_of(piece, column_of >= 0, question.rank), pieces)
    parts = [part for rows in parts for part in (rows.part(rows.alias < 0), *_followed(reader, rows, question.rank))]
    parts = [part for rows in parts for part in _by_session(rows)]
    parts.sort(key=lambda part: int(part.session[0]))  # a later session overwrites
    steps = np.unique(np.concatenate([np.zeros(0, np.int64), *in_threads(lambda part: _distinct(part.steps), parts)]))
    states = np.zeros((len(steps), len(tensors)), np.uint8)
    first = (np.arange(len(steps)) * len(tensors)).astype(np.int32 if states.size < 2**31 else np.int64)  # of a step
    places = in_threads(lambda part: _at(part.steps, steps, first) + column_of.take(part.series), parts)
    for part, place in zip(parts, places, strict=True):
        states.reshape(-1)[place] = part.states
    return Layout(tensors, steps, states, _that_count(parts, places, states))


def _columns(reader: Reader, question: Question) -> tuple[tuple[tuple[str, str], ...], Ids, pa.Table]:
    """The question's tensors, the column of each series' tensor (-1 for others), and the series."""
    series = reader.series()
    words = ("kind", "mode", "context")
    mine = np.logical_and.reduce([rows.are(series, word, getattr(question, word)) for word in words])
    chosen = series.filter(pa.array(mine & (rows.ints(series, "rank") == question.rank)))
    of_series = list(zip(chosen["site"].to_pylist(), chosen["port"].to_pylist(), strict=True))
    paths = dict.fromkeys(path for site in dict.fromkeys(series["site"].to_pylist()) for path in _paths(site))
    first = {path: at for at, path in enumerate(paths)}
    tensors = tuple(sorted(dict.fromkeys(of_series), key=lambda tensor: [first[path] for path in _paths(tensor[0])]))
    place = {tensor: at for at, tensor in enumerate(tensors)}
    numbers = rows.ints(chosen, "series")
    column_of = np.full(2 + int(numbers.max(initial=0)), -1, np.int32)  # one more, for all larger numbers
    column_of[numbers] = [place[tensor] for tensor in of_series]
    return tensors, column_of, chosen


def _paths(site: str) -> Iterator[str]:
    """A site and the modules that contain it, outermost first."""
    return accumulate(site.split("."), "{}.{}".format)


def _rows_of(piece: TableSource, among: Flags, rank: int) -> _Rows:
    """The rows of a piece whose series are flagged; numbers beyond the flags are not."""
    alike = piece.alike(("rank", "session", "alias", *_NOT_FINITE))
    finite = all(alike.get(name) == 0 for name in _NOT_FINITE)
    needed = ("rank", "session", "step", "series", "alias", *(() if finite else _NOT_FINITE))
    table = piece.read([name for name in needed if name not in alike])
    series = _numbers(table["series"])

    def column(name: str) -> Numbers:
        """The numbers of a column, -1 for null; a constant column takes no memory."""
        if name not in alike:
            return _numbers(table[name], -1)
        known = alike[name]
        return np.broadcast_to(np.int32(-1 if known is None else known), len(series))

    states = np.broadcast_to(np.uint8(VALUE), len(series)) if finite else _states(*map(column, _NOT_FINITE))
    row = np.arange(len(series), dtype=np.int32)
    everything = _Rows(piece, row, column("session"), _numbers(table["step"]), series, column("alias"), states)
    return everything.part(among.take(series, mode="clip") & (column("rank") == rank))


def _numbers(column: pa.ChunkedArray, null: int = 0) -> Numbers:
    """A column of numbers, with a number for null."""
    return np.asarray((column.fill_null(null) if column.null_count else column).to_numpy())


def _states(nan: Numbers, pos_inf: Numbers, neg_inf: Numbers) -> States:
    states = np.full(len(nan), VALUE, np.uint8)
    states[(pos_inf > 0) | (neg_inf > 0)] = INF
    states[nan > 0] = NAN
    return states


def _followed(reader: Reader, requested: _Rows, rank: int) -> Iterator[_Rows]:
    """The rows that alias rows stand for, in the same file, as rows of the aliases' series."""
    are_aliases = requested.alias >= 0
    if not are_aliases.any():
        return
    aliases = requested.part(are_aliases)
    among = np.zeros(2 + int(aliases.alias.max()), np.bool_)
    among[aliases.alias] = True
    keys = ("session", "step", "series")
    named = pa.table([aliases.session, aliases.steps, aliases.alias, aliases.series], [*keys, "alias"])
    for piece in reader.moment_pieces(np.flatnonzero(among)):
        if piece.file is requested.piece.file:
            sources = _rows_of(piece, among, rank)
            sources = sources.part(sources.alias < 0)
            at = np.arange(len(sources.row))
            resolved = named.join(
                pa.table([sources.session, sources.steps, sources.series, at], [*keys, "at"]), keys, join_type="inner"
            )
            yield replace(sources.part(resolved["at"].to_numpy()), series=resolved["alias"].to_numpy())


def _by_session(part: _Rows) -> list[_Rows]:
    sessions = _distinct(part.session)
    return [part] if len(sessions) == 1 else [part.part(part.session == session) for session in sessions]


def _that_count(
    parts: list[_Rows], places: list[Numbers], states: States
) -> dict[TableSource, tuple[Ids | None, Ids | Ints]]:
    """Rows and their cells by piece, without rows that a later session overwrites."""
    if sum(map(len, places)) > np.count_nonzero(states):
        last = np.zeros(states.size, np.int32)
        for number, place in enumerate(places):
            last[place] = number
        kept = [last[place] == number for number, place in enumerate(places)]
        parts = [part.part(those) for part, those in zip(parts, kept, strict=True)]
        places = [place[those] for place, those in zip(places, kept, strict=True)]
    pieces: dict[TableSource, list[int]] = {}
    for number, part in enumerate(parts):
        pieces.setdefault(part.piece, []).append(number)
    laid: dict[TableSource, tuple[Ids | None, Ids | Ints]] = {}
    for piece, numbers in pieces.items():
        row = _joined([parts[number].row for number in numbers])
        whole = len(row) == piece.rows and bool(np.all(row == np.arange(len(row))))
        laid[piece] = (None if whole else row, _joined([places[number] for number in numbers]))
    return laid


def _joined(arrays: list[Numbers]) -> Numbers:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _custom_statistic(reader: Reader, question: Question) -> Matrix:
    tensors, column_of, series = _columns(reader, question)
    points = read_history(reader, series, columns=None, custom=[question.stat]).points(question.stat)
    steps = _distinct(points.steps)
    shape = (len(steps), len(tensors))
    cells, states = np.full(shape, np.nan, np.float32), np.zeros(shape, np.uint8)
    numbers = rows.ints(series, "series")[points.owner]
    at = _at(points.steps, steps, np.arange(len(steps)) * len(tensors)) + column_of[numbers]
    cells.reshape(-1)[at] = _narrow(points.values)
    states.reshape(-1)[at] = np.select([np.isnan(points.values), np.isinf(points.values)], [NAN, INF], VALUE)
    return Matrix(question, tensors, steps, cells, states)


def _narrow(values: Floats) -> Cells:
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)


def _distinct(numbers: Ints | Ids) -> Ints:
    """The distinct numbers, ascending; faster than sorting if many are equal."""
    if len(numbers) == 0:
        return np.zeros(0, np.int64)
    least, most = int(numbers.min()), int(numbers.max())
    if least == most:
        return np.array([least])
    if most - least > 4 * len(numbers) + 1000:
        return np.unique(numbers).astype(np.int64)
    present = np.zeros(most - least + 1, np.bool_)
    present[numbers - least] = True
    return np.asarray(np.flatnonzero(present) + least)


def _at(step: Ints, steps: Ints, numbers: Numbers) -> Numbers:
    """For each row the number that belongs to its step; the steps ascend."""
    if len(steps) == 0 or steps[-1] - steps[0] > 4 * len(step) + 1000:
        return np.asarray(numbers[np.searchsorted(steps, step)])
    of_step = np.zeros(int(steps[-1] - steps[0]) + 1, numbers.dtype)
    of_step[steps - steps[0]] = numbers
    return np.asarray(of_step.take(step - steps[0]))
