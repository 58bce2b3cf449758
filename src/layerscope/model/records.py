"""Plain records that the layers exchange: no framework, numpy only."""

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

UPDATE_RATIO = "ratio"  # ‖Δw‖/‖w‖, a statistic that only updates have
STEP_TYPE = "step"  # type of a step without `begin(type=…)`
SAMPLE_STATISTICS = ("mean", "mean_abs", "std", "abs_max")  # over the values of one sample
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


#: Statistics that only some kinds have; any kind may have custom statistics.
KINDS_WITH = {
    UPDATE_RATIO: (Kind.UPDATE.value,),
    **dict.fromkeys((*BATCH_STATISTICS, SINGULAR_MAX), (Kind.TENSOR.value, Kind.TENSOR_GRAD.value)),
}


class Mode(str, Enum):
    """Mode of the module during the forward."""

    TRAIN = "train"
    EVAL = "eval"


class Phase(str, Enum):
    """When in a step the tensor was read; the same tensor can differ between two phases."""

    FORWARD = "forward"  # in a forward hook
    BACKWARD = "backward"  # in a gradient hook, while backward runs
    OPTIMIZER = "optimizer"  # after optimizer.step(): gradients as applied
    STEP = "step"  # when run.step() ended the step


@dataclass(frozen=True, slots=True)
class Series:
    """Key of a history: rows with equal series are one history over the steps."""

    site: str
    port: str
    kind: Kind
    mode: Mode
    phase: Phase
    dtype: str
    shape: tuple[int, ...] = field(default=(), compare=False)  # as first seen
    context: str = ""  # `run.context(name)` around the forward, nested names joined by "/"
    local: str = ""  # portion of the tensor on this rank: "shard", "before reduction", both; "" for the whole


@dataclass(frozen=True, slots=True)
class NumberedSeries:
    """A series and its number in the run."""

    number: int
    series: Series


@dataclass(frozen=True, slots=True)
class Summaries:
    """The summaries of one step: a row of moments and a run of encoded bit-counts for each series.

    The receiver owns the arrays: the producer does not write to them again.
    """

    step: int
    series: Ids
    moments: Floats  # (rows, len(spec.MOMENTS))
    m: Bytes  # mantissa bits counted, one per row
    offsets: Ints  # row i's bit-counts are bits[offsets[i]:offsets[i + 1]]
    bits: Bytes
    alias: Ids  # -1, or the series whose row of the same step holds this row's summary
    scale: Floats  # factor of the tensor, divided out before reading
    merged: Ids  # number of tensors merged into the row


@dataclass(frozen=True, slots=True)
class CustomStatistics:
    """Statistics of one step that summaries do not contain, such as the user's: one row per number."""

    step: int
    series: Ids
    names: tuple[str, ...]
    values: Floats


@dataclass(frozen=True, slots=True)
class Overhead:
    """Time and bytes that recording one step took."""

    step: int
    step_s: float  # from the end of the previous step to the end of this one, including recording
    recording_s: float  # the recorder's share: time in the training's threads and CPU time of the writer
    summaries: int  # number of summarized tensors
    bytes: int  # passed to the sink


class TensorValues(NamedTuple):
    """Values of tensors, or of chosen samples, kept for one step."""

    step: int
    series: Sequence[int]
    samples: Sequence[Ids]  # indices into the batch; empty if the tensor has no batch and the array is the whole tensor
    arrays: Sequence[npt.NDArray[Any]]  # batch dimension first, one row per sample; any dtype
    bytes: int  # of the arrays

    @classmethod
    def one(cls, step: int, series: int, samples: Ids, array: npt.NDArray[Any]) -> TensorValues:
        """A single tensor."""
        return cls(step, (series,), (samples,), (array,), array.nbytes)


@dataclass(frozen=True, slots=True)
class SampleStats:
    """Statistics of the chosen samples of one tensor whose values are not kept."""

    step: int
    series: int
    samples: Ids
    numbers: Floats  # one row per sample, one column per name in SAMPLE_STATISTICS


class Metric(NamedTuple):
    """One number of the training loop, such as the loss."""

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
    batch: int  # number of samples, 0 if unknown
    graphs: tuple[int, ...]  # number of the dependency graph of iteration 0, 1, 2 …; -1 if nothing was named
    samples: tuple[int, ...]  # indices of the chosen samples in the batch
    categories: tuple[str, ...]  # one per chosen sample, or empty
    losses: tuple[str, ...]  # losses with recorded gradients, in order; "" for an unnamed one
    reason: str  # why the step was kept: "schedule", "keep_if", or the text passed to `keep()`


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a step: a note of the user, a warning, dropped rows."""

    step: int
    level: str  # "note", "info", "warning", "drop", "skipped" (a step without an update), "evaluation"
    text: str
    time_s: float


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """One module of the watched model."""

    path: str  # "" for the model itself
    class_name: str
    parameters: int  # number of elements, without those of its children
    detail: str  # extra_repr of the module


@dataclass(frozen=True, slots=True)
class CallNode:
    """One call of a module within a forward of the watched model, or a tensor named in it."""

    site: str  # same as the site of its outputs: "encoder.0#2"
    path: str  # of the module; for a named tensor, of the module that named it
    parent: str  # site of the enclosing call; "" for the outermost
    inputs: tuple[tuple[str, tuple[int, ...]], ...]  # port and shape of each tensor
    outputs: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class CallEdge:
    """Data that flows from one call to another, directly or through operations between them.

    Both calls have the same parent, or one is the parent of the other: then its input is the source, or its output
    the target.
    """

    source: str
    source_port: str
    target: str
    target_port: str
    join: str = ""  # name of the tensor in which several edges into this port merge; "" if unknown


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Modules of the watched model in the order of registration, the calls so far, and the data flow between them."""

    modules: tuple[ModuleNode, ...]
    calls: tuple[CallNode, ...] = ()
    edges: tuple[CallEdge, ...] = ()


class TensorType(str, Enum):
    """Type of a named tensor in the user's network."""

    INPUT = "input"
    TARGET = "target"
    LOSS = "loss"
    INTERMEDIATE = "intermediate"
    PARAMETER = "parameter"


@dataclass(frozen=True, slots=True)
class NamedNode:
    """A name in the dependency graph, and its tensors."""

    name: str
    type: TensorType
    roles: tuple[tuple[str, tuple[int, ...]], ...]  # role and shape; the role of a single tensor is ""


@dataclass(frozen=True, slots=True)
class DependencyLink:
    """One named tensor was computed from another."""

    source: str
    source_role: str
    back: int  # number of iterations between source and target
    target: str
    target_role: str


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Named tensors of one iteration and their dependencies; equal graphs have the same number."""

    number: int
    nodes: tuple[NamedNode, ...]
    links: tuple[DependencyLink, ...]


Record = Summaries | CustomStatistics | Overhead | TensorValues | SampleStats | StepInfo | Metric | Event | CallGraph

SinkRecord = Record | NumberedSeries | Dependencies


class ExtraSink(Protocol):
    """A sink besides the run folder, for `watch(also=[sink])`.

    A thread of the sink's own calls it, so that it may take its time. If it raises, layerscope reports that once and
    detaches it; if it is slow, its queue drops records, lowest priority first, and the run's events report the number.
    """

    def write(self, records: Sequence[SinkRecord]) -> None:
        """Take records; their arrays are shared and must not be changed.

        A `NumberedSeries` comes before the records that use its number, a `Dependencies` before the `StepInfo`.
        """

    def close(self) -> None:
        """The recorder was closed, or `write` has raised."""


class Sink(Protocol):
    """Receiver of a recorder's records. No method waits for a disk."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds that writing took, in any thread or process."""

    def series_id(self, series: Series) -> int:
        """Number of the series; equal series have the same number during the whole run."""

    def dependencies_id(self, nodes: tuple[NamedNode, ...], links: tuple[DependencyLink, ...]) -> int:
        """Number of a dependency graph; equal graphs have the same number during the whole run."""

    def put(self, *records: Record) -> None:
        """Enqueue records; the caller must not write to their arrays again."""

    def when_program_ends(self, close: Callable[[], Callable[[], None] | None]) -> None:
        """Register a weak reference to the function that closes the recorder if the program ends before `close`."""

    def call_soon(self, close: Callable[[], None]) -> None:
        """Call the function that closes the recorder on another thread. Takes no lock: finalizers call this."""

    def close(self) -> None:
        """Write everything enqueued, then stop."""


def call_site(name: str, number: int) -> str:
    """Site of the n-th call of a module, or of a tensor named in iteration n: `name`, then `name#2`, `name#3` …."""
    return name if number == 1 else f"{name}#{number}"


def name_in(site: str, known: Container[str]) -> str:
    """Name of the module or tensor at a site: `fc` for `fc#2`, unless `fc#2` itself is a known name."""
    name, _, number = site.rpartition("#")
    return name if name and number.isdigit() and site not in known else site


def gradient_port(role: str, loss: str) -> str:
    """Port of the gradient of a named tensor; each named loss has its own."""
    return f"{role or ONLY_ROLE}@{loss}" if loss else role or ONLY_ROLE
