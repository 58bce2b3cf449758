"""Tensors that the user names: how much is kept of them, and the step in which they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt

from layerscope.capture.core.schedule import Balance, Late
from layerscope.errors import ArgumentError, StateError
from layerscope.model.records import DependencyLink, NamedNode, Record, StepInfo, TensorType

ReadAttached = Callable[[object, str], None]


class AttachListeners:
    """The functions that read what `attach()` names."""

    def __init__(self) -> None:
        self.listeners: tuple[ReadAttached, ...] = ()  # replaced as a whole, so that threads may read it at any time

    @contextmanager
    def listening(self, read: ReadAttached) -> Iterator[None]:
        """Have the function called with every tensor that is named inside the block."""
        self.listeners = (*self.listeners, read)
        try:
            yield
        finally:
            self.listeners = tuple(other for other in self.listeners if other is not read)


#: Of all recorders of the process.
attach_listeners = AttachListeners()


LEVELS = ("summary", "statistics", "samples", "all")
STATISTICS, SAMPLES, ALL = range(1, len(LEVELS))
Key = tuple[int, str, str, str]  # iteration, name, role and context
_TYPES = {each.value: each for each in TensorType}


@dataclass(frozen=True, slots=True)
class Detail:
    """How much is kept of a named tensor.

    `"summary"`: statistics over all its values. `"statistics"`: also those of each chosen sample. `"samples"`: every
    value of the chosen samples. `"all"`: every value. `samples` is how many samples of a batch are chosen: the first
    ones, unless `keep()` says which. What exceeds `bytes_per_step` is kept at the next lower detail.
    """

    level: str = "samples"
    samples: int = 5
    bytes_per_step: int = 64 << 20

    def __post_init__(self) -> None:
        level_of(self.level)
        if not isinstance(self.samples, int) or self.samples < 0:
            raise ArgumentError(f"samples={self.samples!r} is no number of samples. Give 0 or more.")
        if not isinstance(self.bytes_per_step, int) or self.bytes_per_step < 0:
            raise ArgumentError(
                f"bytes_per_step={self.bytes_per_step!r} is no number of bytes. Give 64 << 20 for 64 MB."
            )


def level_of(word: object) -> int:
    """The index in `LEVELS` of a word for a detail."""
    if isinstance(word, str) and word in LEVELS:
        return LEVELS.index(word)
    raise ArgumentError(f"There is no detail {word!r}. Details are: {', '.join(LEVELS)}.")


class NamedTensor:
    """One tensor that was named in the step."""

    is_training = True

    def __init__(
        self, key: Key, type: TensorType, level: int, number: int, shape: tuple[int, ...], batch_dim: int | None
    ) -> None:
        self.key = key
        self.iteration, self.name, self.role, self.context = key
        self.type = type
        self.level = level  # of detail
        self.number = number  # in the order of naming
        self.shape = shape
        self.batch_dim = batch_dim
        self.batch = 0 if batch_dim is None else shape[batch_dim]  # samples in it, 0 if it has no batch

    @property
    def label(self) -> str:
        """Its name in dependency graphs, where each context has tensors of its own."""
        return f"{self.name}@{self.context}" if self.context else self.name


class NamedSummary:
    """What was read of one tensor or gradient."""

    row = series = -1
    loss = ""  # of a gradient
    local = ""  # what of the tensor this process has, if not all of it
    first = 0  # row of the first sample's statistics
    batch = -1  # row of the batch's, if there is one
    singular: float | None = None
    array: npt.NDArray[Any] | None = None  # the batch first; a copy
    kept = 0  # samples in it, the first ones

    def __init__(self, entry: NamedTensor, dtype: str, *, is_value: bool) -> None:
        self.entry = entry
        self.dtype = dtype
        self.is_value = is_value  # and no gradient
        self.level = entry.level


class NamedGraph(NamedTuple):
    """What was named in one iteration of a step, and what it depends on."""

    nodes: tuple[NamedNode, ...]
    links: tuple[DependencyLink, ...]


@dataclass(slots=True)
class StepData:
    """A step that is recorded, or may still be: what was named and read in it, and its records when it has ended."""

    step: int
    type: str
    detail: Detail
    holds: bool  # whether all samples are kept until the step ends
    iterations: int = 0
    is_inside: bool = False  # of an iteration
    interrupted: bool = False  # an error went through an iteration
    entries: dict[Key, NamedTensor] = field(default_factory=dict)
    said: list[Hashable] = field(default_factory=list)  # all of it, in order: equal steps have equal graphs
    read: list[NamedSummary] = field(default_factory=list)
    losses: dict[str, None] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)  # names in what a compiler has made, where nothing is read
    late: Late | None = None
    order: int = 0  # a hash of what was named in which order
    graphs: tuple[NamedGraph | None, ...] | None = None  # of iteration 0, 1 …; without links where it was not traced
    is_traced: bool = False  # from its beginning to its end
    records: list[Record] = field(default_factory=list)
    summaries: int = 0  # tensors summarized
    bytes: int = 0  # of the records

    @property
    def batch(self) -> int:
        """Samples in the batch: those of the first tensor that has one."""
        return next((entry.batch for entry in self.entries.values() if entry.batch), 0)

    @property
    def categories(self) -> tuple[str, ...]:
        """Of each chosen sample, if the user gave them."""
        return () if self.late is None else self.late.categories

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """A `with` block around one pass of the step."""
        if self.is_inside:
            raise StateError(
                f"iteration() came inside iteration {self.iterations} of the step. End that one first: iterations "
                "follow one another, they do not nest."
            )
        self.is_inside = True
        self.iterations += 1
        ended = False
        try:
            yield
            ended = True
        finally:
            self.is_inside = False
            self.interrupted |= not ended

    def choose(
        self, late: Late, samples: int | Iterable[int] | None, categories: Sequence[object], by: Balance
    ) -> None:
        """Decide which samples are kept."""
        samples, batch = _plain(samples), self.batch
        labels = tuple(str(_plain(category)) for category in _plain(categories))
        if labels and len(labels) != batch:
            raise ArgumentError(
                f"keep() got {len(labels)} categories for {batch} samples. Give one for each of the batch."
            )
        if isinstance(samples, int) or samples is None:
            most = self.detail.samples if samples is None else samples
            late.samples = by.choose(labels, most) if labels else tuple(range(min(most, batch)))
        else:
            late.samples = tuple(dict.fromkeys(int(sample) for sample in samples))
            wrong = [sample for sample in late.samples if not 0 <= sample < batch]
            if wrong:
                raise ArgumentError(f"keep() got sample {wrong[0]}, but the batch has samples 0 to {batch - 1}.")
        if not self.holds and not set(late.samples) <= set(self.first()):
            raise ArgumentError(
                f"keep() chose samples {late.samples}, but only the first {len(self.first())} are in memory until a "
                "step ends. Give Schedule(keep_last=1), or more samples: Detail(samples=…)."
            )
        late.categories = tuple(labels[sample] for sample in late.samples) if labels else ()

    def first(self) -> tuple[int, ...]:
        """The samples that are kept unless the user says otherwise."""
        return tuple(range(min(self.detail.samples, self.batch)))

    def samples(self) -> tuple[int, ...]:
        """The chosen samples."""
        return self.first() if self.late is None or self.late.samples is None else self.late.samples

    def info(self, reason: str, graphs: tuple[int, ...]) -> StepInfo:
        """The record of the step, by the numbers of its graphs."""
        numbers = (self.batch, graphs, self.samples(), self.categories)
        return StepInfo(self.step, self.type, max(self.iterations, 1), *numbers, tuple(self.losses), reason)


def _plain(thing: Any) -> Any:  # Any: a framework's tensor or array, or what needs no change
    """Python's own numbers, or lists of them, for a tensor or an array."""
    return thing.tolist() if hasattr(thing, "tolist") else thing


def checked_name(name: str) -> str:
    """The name, if a tensor or a step type can have it."""
    if not isinstance(name, str) or not name or "@" in name or "#" in name:
        raise ArgumentError(
            f"A tensor cannot be called {name!r}: a name is text without '@' and '#', which mark gradients "
            "and iterations."
        )
    return name


def checked(name: str, word: str, role: str, batch_dim: int | None) -> TensorType:
    """The type of a tensor, if it can be recorded so."""
    checked_name(name)
    if not isinstance(word, str) or word not in _TYPES:
        raise ArgumentError(f"There is no type {word!r} (of {name!r}). Types are: {', '.join(_TYPES)}.")
    if not isinstance(role, str) or "@" in role or role == "tensor":
        raise ArgumentError(
            f"A role cannot be {role!r}: it is text without '@', which marks gradients, and not 'tensor'."
        )
    if not isinstance(batch_dim, int | None):
        raise ArgumentError(
            f"batch_dim={batch_dim!r} of {name!r} is no dimension. Give its number, or None for no batch."
        )
    return _TYPES[word]
