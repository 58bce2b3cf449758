"""The plain records that travel between the layers: no framework, numpy only."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

UPDATE_RATIO = "ratio"  # a further statistic of updates: ‖Δw‖/‖w‖
STEP_TYPE = "step"  # of a step to which the user gave none
SAMPLE_STATISTICS = ("mean", "mean_abs", "std", "abs_max")  # of the values of one sample
BATCH_STATISTICS = tuple(
    f"{over}_of_sample_{statistic}" for statistic in SAMPLE_STATISTICS for over in ("mean", "std", "abs_max")
)
SINGULAR_MAX = "singular_max"  # largest singular value of a matrix
ONLY_ROLE = "tensor"  # the port of a named tensor without a role


class Kind(str, Enum):
    """What a tensor is at its site."""

    INPUT = "input"
    OUTPUT = "output"
    INPUT_GRAD = "input_grad"
    OUTPUT_GRAD = "output_grad"
    INPUT_GRAD_NORM = "input_grad_norm"
    OUTPUT_GRAD_NORM = "output_grad_norm"
    WEIGHT = "weight"
    WEIGHT_GRAD = "weight_grad"
    UPDATE = "update"
    OPTIMIZER = "optimizer"
    BUFFER = "buffer"
    TENSOR = "tensor"
    TENSOR_GRAD = "tensor_grad"


#: Statistics that only tensors of some kinds have; those of the user's own may be of any.
KINDS_WITH = {
    UPDATE_RATIO: (Kind.UPDATE.value,),
    **dict.fromkeys((*BATCH_STATISTICS, SINGULAR_MAX), (Kind.TENSOR.value, Kind.TENSOR_GRAD.value)),
}


class Mode(str, Enum):
    """Whether the module was training or evaluating."""

    TRAIN = "train"
    EVAL = "eval"


class Phase(str, Enum):
    """When in a step the tensor was read: two readings of one tensor are two different numbers."""

    FORWARD = "forward"  # in a forward hook
    BACKWARD = "backward"  # in a gradient hook, while backward runs
    OPTIMIZER = "optimizer"  # after optimizer.step(): gradients as they were applied
    STEP = "step"  # when the user ended the step


@dataclass(frozen=True, slots=True)
class Series:
    """What the rows of one history have in common; equal series are one history."""

    site: str
    port: str
    kind: Kind
    mode: Mode
    phase: Phase
    dtype: str
    shape: tuple[int, ...] = field(default=(), compare=False)  # as first seen
    context: str = ""  # `run.context(name)` around the forward, nested names joined by "/"
    local: str = ""  # what of the tensor the rank has: "shard", "before reduction", both; "" for all of it


@dataclass(frozen=True, slots=True)
class Summaries:
    """The summaries of one step: a row of moments and a run of encoded bit-counts for each series.

    The arrays belong to whoever holds the record: a producer hands them over and never writes them again.
    """

    step: int
    series: Ids
    moments: Floats  # (rows, len(spec.MOMENTS))
    m: Bytes  # mantissa bits counted, one per row
    offsets: Ints  # row i's bit-counts are bits[offsets[i]:offsets[i + 1]]
    bits: Bytes
    alias: Ids  # -1, or the series whose row of the same step holds this row's summary
    scale: Floats  # the factor the tensor had been multiplied by and was divided by before reading
    merged: Ids  # how many tensors were added up in the row


@dataclass(frozen=True, slots=True)
class CustomStatistics:
    """Statistics of one step that are not in the summaries, such as the user's own: one row for each number."""

    step: int
    series: Ids
    names: tuple[str, ...]
    values: Floats


@dataclass(frozen=True, slots=True)
class Overhead:
    """Time and bytes that recording one step took."""

    step: int
    step_s: float  # from the end of the step before to the end of this one, recording included
    recording_s: float  # of it, what the recorder took: in the training's threads, and computing time of its writer
    summaries: int  # tensors summarized
    bytes: int  # handed to the sink


class TensorValues(NamedTuple):
    """Tensors, or chosen samples of them, kept for one step."""

    step: int
    series: Sequence[int]
    samples: Sequence[Ids]  # their places in the batch; none where a tensor has no batch and the array is all of it
    arrays: Sequence[npt.NDArray[Any]]  # the batch first, one row for each sample; of any type of number, as they are
    bytes: int  # of the arrays

    @classmethod
    def one(cls, step: int, series: int, samples: Ids, array: npt.NDArray[Any]) -> TensorValues:
        """A single tensor."""
        return cls(step, (series,), (samples,), (array,), array.nbytes)


@dataclass(frozen=True, slots=True)
class SampleStats:
    """Statistics of the chosen samples of one tensor, where their values are not kept."""

    step: int
    series: int
    samples: Ids
    numbers: Floats  # one row for each sample, one column for each of SAMPLE_STATISTICS


class Metric(NamedTuple):
    """One number of the training loop, such as its loss."""

    step: int
    name: str
    value: float
    time_s: float  # since the epoch
    type: str = STEP_TYPE  # of the step


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One recorded step in which tensors were named."""

    step: int
    type: str
    iterations: int
    batch: int  # samples in it, 0 if that is not known
    graphs: tuple[int, ...]  # number of the dependency graph of iteration 0, 1, 2 …; -1 where nothing was named
    samples: tuple[int, ...]  # the chosen ones, by their places in the batch
    categories: tuple[str, ...]  # of each chosen sample, or none
    losses: tuple[str, ...]  # whose gradients were taken, in order; "" for one without a name
    reason: str  # why it was kept: "schedule", "keep_if", or the user's words


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a step: a note of the user's, a warning, dropped rows."""

    step: int
    level: str  # "note", "info", "warning", "drop", "skipped" (a step whose update was not made), "evaluation"
    text: str
    time_s: float


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """One module of the watched model, as it stands in the module tree."""

    path: str  # "" for the model itself
    class_name: str
    parameters: int  # own elements, without those of its children
    detail: str  # extra_repr of the module


@dataclass(frozen=True, slots=True)
class CallNode:
    """One call of a module within a forward of the watched model, or a tensor that was named in it."""

    site: str  # as in the series of its outputs: "encoder.0#2"
    path: str  # the module's; of a named tensor, that of the module it was named in
    parent: str  # site of the call it happened in; "" for the outermost
    inputs: tuple[tuple[str, tuple[int, ...]], ...]  # port and shape of each tensor
    outputs: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class CallEdge:
    """Data that flows from one call to another; operations between the calls are passed through.

    Both stand side by side in one call, or one of them is the call around the other: then its input is the source, or
    its output the target.
    """

    source: str
    source_port: str
    target: str
    target_port: str
    join: str = ""  # where several go into the port: names the tensor in which they met, "" if that is not known


@dataclass(frozen=True, slots=True)
class CallGraph:
    """The watched model's modules in the order of registration, the calls seen so far, and how data flowed."""

    modules: tuple[ModuleNode, ...]
    calls: tuple[CallNode, ...] = ()
    edges: tuple[CallEdge, ...] = ()


class TensorType(str, Enum):
    """What a named tensor is in the user's network."""

    INPUT = "input"
    TARGET = "target"
    LOSS = "loss"
    INTERMEDIATE = "intermediate"
    PARAMETER = "parameter"


@dataclass(frozen=True, slots=True)
class NamedNode:
    """A name in the dependency graph, with the tensors that go by it."""

    name: str
    type: TensorType
    roles: tuple[tuple[str, tuple[int, ...]], ...]  # role and shape; the role of a single tensor is ""


@dataclass(frozen=True, slots=True)
class DependencyLink:
    """One named tensor was computed from another."""

    source: str
    source_role: str
    back: int  # how many iterations before the target's the source was recorded
    target: str
    target_role: str


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What was named in one iteration, and what it depends on: equal ones have one number."""

    number: int
    nodes: tuple[NamedNode, ...]
    links: tuple[DependencyLink, ...]


Record = Summaries | CustomStatistics | Overhead | TensorValues | SampleStats | StepInfo | Metric | Event | CallGraph


class Sink(Protocol):
    """Where a recorder's records go. No method waits for a disk."""

    cpu_s: float  # seconds of computing time that writing has taken, wherever it was done

    def series_id(self, series: Series) -> int:
        """Number of the series, the same for equal series for the life of the run."""

    def dependencies_id(self, nodes: tuple[NamedNode, ...], links: tuple[DependencyLink, ...]) -> int:
        """Number of a dependency graph, the same for equal graphs for the life of the run."""

    def put(self, *records: Record) -> None:
        """Take over records; their arrays must not be written again."""

    def when_program_ends(self, close: Callable[[], Callable[[], None] | None]) -> None:
        """Give a weak reference to what closes the recorder, to be called if the program ends before `close`."""

    def call_soon(self, close: Callable[[], None]) -> None:
        """Have what closes the recorder called on another thread. Waits for no lock: finalizers call this."""

    def close(self) -> None:
        """Write what was taken, then stop."""


def call_site(name: str, number: int) -> str:
    """Site of a call of a module, or of a tensor named in an iteration: the name for the first, else `name#2`."""
    return name if number == 1 else f"{name}#{number}"


def name_in(site: str, known: Container[str]) -> str:
    """What is called or named at a site: `fc` of `fc#2`, unless that as a whole is a name that is known."""
    name, _, number = site.rpartition("#")
    return name if name and number.isdigit() and site not in known else site


def gradient_port(role: str, loss: str) -> str:
    """Port of the gradient of a named tensor; losses that were given a name have gradients of their own."""
    return f"{role or ONLY_ROLE}@{loss}" if loss else role or ONLY_ROLE
