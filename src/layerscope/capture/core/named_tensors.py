"""Who wants to hear of tensors that the user names in the middle of a forward."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from layerscope.capture.core.schedule import Balance, Late
from layerscope.errors import ArgumentError, SelectError, StateError
from layerscope.model.records import STEP_TYPE, DependencyLink, NamedNode, Sink, StepInfo, TensorType

if TYPE_CHECKING:
    from layerscope.capture.core.named_reader import NamedReader

Hear = Callable[[object, str], None]


class AttachListeners:
    """Those who listen right now."""

    def __init__(self) -> None:
        self.listeners: tuple[Hear, ...] = ()  # replaced as a whole, so that threads may read it at any time

    @contextmanager
    def listening(self, hear: Hear) -> Iterator[None]:
        """Have the function told of every tensor that is named inside the block."""
        self.listeners = (*self.listeners, hear)
        try:
            yield
        finally:
            self.listeners = tuple(other for other in self.listeners if other is not hear)


#: The one audience that all recorders of a process share.
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
    """The place among `LEVELS` of a word for a detail."""
    if isinstance(word, str) and word in LEVELS:
        return LEVELS.index(word)
    raise ArgumentError(f"There is no detail {word!r}. Details are: {', '.join(LEVELS)}.")


class RecordArguments(NamedTuple):
    """What a call of `record` says of its tensor."""

    name: str
    type: str
    role: str
    batch_dim: int | None
    initial: bool
    detail: str | None


class NodeSpec(NamedTuple):
    """The same, looked up."""

    type: TensorType
    level: int
    word: str  # for the part


class NamedTensor:
    """One tensor that was named in the step."""

    is_training = True

    def __init__(self, key: Key, node: NodeSpec, number: int, shape: tuple[int, ...], batch_dim: int | None) -> None:
        self.key = key
        self.iteration, self.name, self.role, self.context = key
        self.type = node.type
        self.level = node.level
        self.number = number  # in the order of naming
        self.shape = shape
        self.batch_dim = batch_dim
        self.batch = 0 if batch_dim is None else shape[batch_dim]  # samples in it, 0 if it has no batch

    @property
    def label(self) -> str:
        """Its name in dependency graphs, where each context has tensors of its own."""
        return f"{self.name}@{self.context}" if self.context else self.name


@dataclass(slots=True)
class NamedStep:
    """What was named in the step in progress, and what was said about the step."""

    reader: NamedReader
    detail: Detail
    holds: bool  # whether all samples are held until the step ends
    known: Container[int]  # hashes of what is said in steps whose graphs are known
    nodes: dict[tuple[object, ...], NodeSpec]  # what was said in steps before this one, looked up
    type: str = STEP_TYPE
    iterations: int = 0
    is_inside: bool = False  # of an iteration
    interrupted: bool = False  # an error went through an iteration
    entries: dict[Key, NamedTensor] = field(default_factory=dict)
    said: list[Hashable] = field(default_factory=list)  # all of it, in order: equal steps have equal graphs
    losses: dict[str, None] = field(default_factory=dict)
    unread: dict[str, None] = field(default_factory=dict)  # names in what a compiler has made, where nothing is read
    late: Late | None = None

    @property
    def batch(self) -> int:
        """Samples in the batch: those of the first tensor that has one."""
        return next((entry.batch for entry in self.entries.values() if entry.batch), 0)

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

    def record(self, tensor: object, said: tuple[Any, ...]) -> None:  # Any: the fields of `Said`, as they come
        """Take in a named tensor."""
        if self.reader.computes_again():
            self._again(tensor, RecordArguments(*said))
            return
        name, _, role, batch_dim, initial, _ = said
        try:
            node = self.nodes[said]
        except (KeyError, TypeError):  # it is new, or no such thing can be said
            node = _looked_up(RecordArguments(*said), level_of(self.detail.level))
            self.nodes[said] = node
        key = (0 if initial else self.iterations or 1, name, role, self.reader.context)
        if key in self.entries:
            raise StateError(
                f"{_spoken(name, role)} is recorded twice in iteration {key[0]} of the step. Give one of them "
                "another name or role, or open an iteration() or a context() for each pass."
            )
        entry = NamedTensor(key, node, len(self.entries), *self.reader.form(tensor, batch_dim, name))
        self.entries[key] = entry
        self.said.append((key, node.word))
        self.reader.read(entry, tensor)

    def _again(self, tensor: object, said: RecordArguments) -> None:
        """A tensor that checkpointing computes a second time: only its gradient is new, if it is clear whose it is."""
        if self.reader.is_recorded_by_others():
            self.unread[said.name] = None
            return
        same = [entry for (_, *its, _), entry in self.entries.items() if its == [said.name, said.role]]
        if len(same) > 1:
            context = self.reader.context
            same = [entry for entry in same if entry.context == context] or same
        if len(same) == 1:
            self.reader.follow(same[0], tensor)
        elif not same:
            self.reader.tell_unheard(said.name)

    def link(self, source: object, target: object) -> None:
        """Let what has one name depend on another."""
        for one in self._meant(source):
            for other in self._meant(target):
                self.reader.link(one, other)
        self.said.append(("link", *(thing if isinstance(thing, str) else "" for thing in (source, target))))

    def _meant(self, thing: object) -> list[object]:
        """The tensors recorded last under a name, in this context if there are any, or the tensor itself."""
        if not isinstance(thing, str):
            self.reader.form(thing, None, "link()")
            return [thing]
        context = self.reader.context
        entries = [entry for entry in self.entries.values() if thing in (entry.name, entry.label)]
        entries = [entry for entry in entries if entry.context == context] or entries
        if not entries:
            known = ", ".join(dict.fromkeys(repr(entry.name) for entry in self.entries.values())) or "nothing"
            raise SelectError(
                f"link() knows no tensor {thing!r} in this step. Record it first; recorded so far: {known}."
            )
        return [entry for entry in entries if entry.iteration == entries[-1].iteration]

    def gradients(self, loss: str) -> None:
        """Name the loss whose gradients have arrived."""
        if not isinstance(loss, str) or not loss or "@" in loss:
            raise ArgumentError(f"gradients() needs the name of a loss, without '@', not {loss!r}.")
        self.reader.name_gradients(loss)

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
            late.samples = tuple(dict.fromkeys(int(place) for place in samples))
            wrong = [place for place in late.samples if not 0 <= place < batch]
            if wrong:
                raise ArgumentError(f"keep() got sample {wrong[0]}, but the batch has samples 0 to {batch - 1}.")
        if not self.holds and not set(late.samples) <= set(self.first()):
            raise ArgumentError(
                f"keep() chose samples {late.samples}, but only the first {len(self.first())} are in memory until a "
                "step ends. Give Schedule(keep_last=1), or more samples: Detail(samples=…)."
            )
        late.categories = tuple(labels[place] for place in late.samples) if labels else ()

    def first(self) -> tuple[int, ...]:
        """The samples that are kept unless the user says otherwise."""
        return tuple(range(min(self.detail.samples, self.batch)))

    def samples(self) -> tuple[int, ...]:
        """The chosen samples."""
        return self.first() if self.late is None or self.late.samples is None else self.late.samples

    def info(self, step: int, reason: str, graphs: tuple[int, ...]) -> StepInfo:
        """The record of the step."""
        categories = () if self.late is None else self.late.categories
        numbers = (self.batch, graphs, self.samples(), categories)
        return StepInfo(step, self.type, max(self.iterations, 1), *numbers, tuple(self.losses), reason)


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


def _looked_up(said: RecordArguments, usual: int) -> NodeSpec:
    """What was said, if it can be."""
    name, word, role, batch_dim, _, detail = said
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
    return NodeSpec(_TYPES[word], usual if detail is None else level_of(detail), word)


def _spoken(name: str, role: str) -> str:
    return f"{name!r} (role {role!r})" if role else repr(name)


Graphs = tuple[
    tuple[tuple[NamedNode, ...], tuple[DependencyLink, ...]] | None, ...
]  # of iteration 0, 1 …; None: nothing named
_SURE = 2  # steps that gave what was known
_RARELY = 10  # the factor between one check and the next, from then on
_MOST_WAITING = 16
_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class KnownDependencies:
    """What a step showed of how the tensors named in it depend on each other."""

    order: int  # a hash of what was named in which order
    graphs: Graphs  # None between the lines: without links where the step was not traced
    whole: bool  # traced from its beginning to its end


class DependencyCache:
    """Graphs by the order in which tensors were named, and how sure that is for each type of step."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.known: dict[int, tuple[int, ...]] = {}
        self._sure: dict[str, int] = {}  # steps of the type since one had something new
        self._waiting: list[tuple[StepInfo, int]] = []  # written, but of an order whose graphs are not known

    def wants(self, type: str) -> bool:
        """Whether the next step of the type is to be traced."""
        sure = self._sure.get(type, 0)
        while sure >= _SURE and sure % _RARELY == 0:
            sure //= _RARELY
        return sure < _SURE

    def learn(self, type: str, found: KnownDependencies) -> None:
        """Take in what a step showed."""
        before = self.known.get(found.order)
        if found.whole:
            self.known[found.order] = self._numbers(found)
            if len(self.known) > _MOST_KNOWN:
                del self.known[next(iter(self.known))]
        same = before is not None and before == self.known.get(found.order)
        self._sure[type] = self._sure.get(type, 0) + 1 if same else 0
        if found.whole:
            self._settle(found.order)

    def graphs(self, found: KnownDependencies) -> tuple[int, ...]:
        """Numbers of the graphs of a step, as far as they are known."""
        return self.known.get(found.order) or self._numbers(found)

    def put(self, info: StepInfo, found: KnownDependencies) -> None:
        """Hand over the record of a step, and once more when its graphs are known: the last one counts."""
        self._sink.put(info)
        if found.order not in self.known:
            self._waiting = [*self._waiting[1 - _MOST_WAITING :], (info, found.order)]

    def _settle(self, order: int) -> None:
        for info, its_order in self._waiting:
            if its_order == order and info.graphs != self.known[order]:
                self._sink.put(replace(info, graphs=self.known[order]))
        self._waiting = [waiting for waiting in self._waiting if waiting[1] != order]

    def _numbers(self, found: KnownDependencies) -> tuple[int, ...]:
        return tuple(-1 if graph is None else self._sink.dependencies_id(*graph) for graph in found.graphs)
