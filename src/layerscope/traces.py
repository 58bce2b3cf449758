"""Trace: every operation of one pass, with its operations, layers, summary and comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from layerscope.errors import ArgumentError, SelectError, StateError
from layerscope.graph.layers import Distance, Naming, Relations, name_layers
from layerscope.model.trace_record import CodeFrame, Operation, TraceRecord
from layerscope.query.tables import Table
from layerscope.query.trace_tables import (
    Key,
    Lookup,
    Selector,
    code_of,
    module_rows,
    operations_table,
    stack_of,
    summary_table,
)
from layerscope.views.trace_text import summary_text

if TYPE_CHECKING:
    from layerscope.model.trace_record import Code
    from layerscope.query.tables import Table
    from layerscope.store.traces import StoredTrace


class ModelSummary:
    """What `summary(model, x)` gives: print it, or take `rows` on as a table."""

    def __init__(self, record: TraceRecord) -> None:
        self._rows = module_rows(record)

    @property
    def rows(self) -> Table:
        """One row per module."""
        return summary_table(self._rows)

    def __repr__(self) -> str:
        return summary_text(self._rows)


Tensor = Any  # a framework's tensor, or a numpy array where the trace was read from a run
Edit = Callable[..., Tensor]
TRACES_VIEW = "#view=traces"  # of the page


class Validation(Protocol):
    """What `validate` gives: true when every operation is right."""

    def __bool__(self) -> bool: ...


class Engine(Protocol):
    """The framework's side of a live trace."""

    def validate(self, record: TraceRecord, *, rerun: bool | None) -> Validation:
        """Execute every operation again and compare."""
        ...

    def random_state(self, operation: int) -> Tensor | None:
        """The random state before an operation that draws random numbers."""
        ...

    def rerun(
        self, edits: Mapping[int, Edit], functions: Mapping[int, Edit], parameters: Mapping[str, Tensor]
    ) -> Trace:
        """Run the pass again with some results, functions or parameters replaced."""
        ...


class Op:
    """One operation of the pass; `record` holds what is known of it but the values."""

    def __init__(self, trace: Trace, index: int) -> None:
        self._trace = trace
        self.record: Operation = trace.record.operations[index]

    def __getattr__(self, name: str) -> Any:  # Any: each field of the record has its own type
        return getattr(self.record, name)

    @property
    def label(self) -> str:
        """The operation's name: "conv2d_3_7", with ":2" for the second pass of a layer that has several."""
        return self._trace.naming.label(self.record.index)

    @property
    def layer(self) -> Layer:
        """All passes of the same operation."""
        return Layer(self._trace, self._trace.naming.layer[self.record.index])

    @property
    def value(self) -> Tensor:
        """What the operation gave."""
        return self._trace.value_of(self.record.index)

    @property
    def grads(self) -> list[Tensor]:
        """Its gradients, one for each backward that reached it."""
        return list(self._trace.gradients.get(self.record.index, ()))

    @property
    def grad(self) -> Tensor | None:
        """The gradient of the last backward that reached it; None if none did."""
        return self.grads[-1] if self.grads else None

    @property
    def parents(self) -> list[Op]:
        """Operations whose results it took."""
        return [Op(self._trace, parent.operation) for parent in self.record.parents]

    @property
    def parent_arguments(self) -> list[str]:
        """What each parent was to it: "0", "mask", "0.2" for the third tensor of a list in first place."""
        return [parent.argument for parent in self.record.parents]

    @property
    def children(self) -> list[Op]:
        """Operations that took its result."""
        return [Op(self._trace, child) for child in self._relations.children[self.record.index]]

    @property
    def child_arguments(self) -> list[list[str]]:
        """What it was to each of its children."""
        return list(self._relations.children[self.record.index].values())

    @property
    def is_branch(self) -> bool:
        """Whether several calls took its result."""
        return self._relations.is_branch(self.record.index)

    @property
    def is_merge(self) -> bool:
        """Whether it took several results; parameters do not count."""
        return self._relations.is_merge(self.record.index)

    @property
    def from_input(self) -> Distance | None:
        """Steps from an input, by the shortest and the longest way; None if no input leads to it."""
        return self._relations.from_input[self.record.index]

    @property
    def to_output(self) -> Distance | None:
        """Steps to an output, by the shortest and the longest way; None if it leads to none."""
        return self._relations.to_output[self.record.index]

    @property
    def number(self) -> int:
        """Which pass of its layer it is, from 1; `len(op.layer)` is how many there are."""
        return self._trace.naming.number[self.record.index]

    @property
    def module(self) -> str:
        """Path of the module it was computed in; "" for the model itself."""
        return self._trace.record.calls[self.record.call].path

    @property
    def module_call(self) -> int:
        """Which call of that module, from 1; 0 outside of any module."""
        return self._trace.record.calls[self.record.call].number

    @property
    def random_state(self) -> Tensor | None:
        """The state its random numbers were drawn from; None if it drew none, or the trace was read from a run."""
        engine = self._trace.engine
        return None if engine is None else engine.random_state(self.record.index)

    @property
    def stack(self) -> list[CodeFrame]:
        """Where in the code it was called, innermost first, with the lines around."""
        return list(stack_of(self._trace.record, self.record.index, self._trace.code))

    @property
    def keys(self) -> list[str]:
        """Every key by which the trace finds it."""
        return self._trace.lookup.keys(self.record.index)

    def __repr__(self) -> str:
        from layerscope.views.trace_text import operation_text

        trace, index = self._trace, self.record.index
        text = operation_text(trace.record, trace.naming, trace.relations, index, self._sample(), self.stack)
        return f"{text}\n\tLookup keys: {', '.join(self.keys)}"

    @property
    def _relations(self) -> Relations:
        return self._trace.relations

    def _sample(self) -> str | None:
        value = self._trace.values.get(self.record.index)
        return None if value is None else corner(value)


class Layer:
    """The passes of one operation that repeats."""

    def __init__(self, trace: Trace, index: int) -> None:
        self.label = trace.naming.labels[index]
        self.passes = [Op(trace, member) for member in trace.naming.members[index]]

    def __getitem__(self, number: int) -> Op:
        if not 1 <= number <= len(self.passes):
            raise SelectError(f"{self.label} has no pass {number}: there are {len(self.passes)}, counted from 1.")
        return self.passes[number - 1]

    def __len__(self) -> int:
        return len(self.passes)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.passes)

    def __repr__(self) -> str:
        return "\n".join([f"Layer {self.label}, {len(self)} passes:", *(f"\t{op.label}" for op in self.passes)])


class Trace:
    """Every operation of one pass: `trace["conv2d_3"].value`, `trace.table()`, `trace.validate()`, `trace.draw()`."""

    def __init__(
        self,
        record: TraceRecord | Callable[[], TraceRecord],
        values: Mapping[int, Tensor],
        *,
        gradients: Mapping[int, Sequence[Tensor]] | None = None,
        output: object = None,
        engine: Engine | None = None,
        code: Code | None = None,
    ) -> None:
        self._describe = record if callable(record) else lambda: record
        self.values = values
        self.gradients = {} if gradients is None else gradients
        self.output = output
        self.engine = engine
        self.code = code  # around the lines of the pass, if it was stored; otherwise the files are read

    @cached_property
    def record(self) -> TraceRecord:
        """Everything known of the pass but the values; made when it is first looked at."""
        return self._describe()

    @cached_property
    def naming(self) -> Naming:
        """Layers, passes and labels."""
        return name_layers(self.record)

    @cached_property
    def lookup(self) -> Lookup:
        """Every name that selects an operation."""
        return Lookup(self.record, self.naming)

    @cached_property
    def relations(self) -> Relations:
        """Children, branches, merges and distances."""
        return Relations(self.record.operations)

    @property
    def ops(self) -> list[Op]:
        """Every operation in the order of execution, inputs and outputs included."""
        return [Op(self, index) for index in range(len(self.record.operations))]

    @property
    def labels(self) -> list[str]:
        """The label of every operation."""
        return [self.naming.label(index) for index in range(len(self.record.operations))]

    def __getitem__(self, key: Key) -> Op | Layer:
        indices = self.lookup.one(key)
        return Op(self, indices[0]) if len(indices) == 1 else Layer(self, self.naming.layer[indices[0]])

    def __len__(self) -> int:
        return len(self.record.operations)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def find(self, *selectors: Selector) -> list[Op]:
        """Operations by label, module, ordinal, substring, glob, or by a function of their record that says yes."""
        return [Op(self, index) for index in self.lookup.many(selectors)]

    def value_of(self, index: int) -> Tensor:
        """The kept value of one operation."""
        if index in self.values:
            return self.values[index]
        label = self.naming.label(index)
        raise StateError(f"The value of {label} was not kept. Trace again with save='all', or with save=[{label!r}].")

    def table(self) -> Table:
        """One row per operation, with everything known of it but the value."""
        return operations_table(self.record, self.naming, self.relations)

    def validate(self, *, rerun: bool | None = None) -> Validation:
        """Execute every operation again from its kept parents, and compare; true when all is right.

        Where tensors entered the pass from outside of torch, a copy of the model is run again with other inputs, to
        see whether they depend on them. `rerun=False` leaves that out; `rerun=True` does it for a function too, which
        cannot be copied.
        """
        return self._live("validate()").validate(self.record, rerun=rerun)

    def rerun(
        self,
        edits: Mapping[Key, Edit | Tensor] | None = None,
        *,
        functions: Mapping[Key, Edit] | None = None,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> Trace:
        """The pass again, with something replaced, as a trace of its own.

        `edits` maps operations to a function of their result, or to the tensor to put in its place, such as another
        trace's value; `functions` to what is called instead, with the operation's arguments; `parameters` maps names
        to tensors.
        """
        changed = {index: _edit(edit) for key, edit in (edits or {}).items() for index in self.lookup.one(key)}
        other = {index: function for key, function in (functions or {}).items() for index in self.lookup.one(key)}
        return self._live("rerun()").rerun(changed, other, parameters or {})

    def draw(  # noqa: PLR0913  the options of a drawing
        self,
        path: str | Path | None = None,
        *,
        depth: int | None = None,
        rolled: bool = True,
        focus: str | None = None,
        color_by: str | Mapping[int, float] | None = None,
        gradient: Collection[int] = (),
        expanded: Collection[str] = (),
    ) -> str:
        """Draw the graph; returns SVG text, and writes it to `path`: `.svg`, `.png` or `.dot`.

        `depth` is how many levels of modules are open, by default as many as can be read; modules in `expanded` are
        open at any depth. `rolled=False` draws every pass of a repeated layer. `focus` draws one module: `"encoder.0"`,
        or `"encoder.0#2"` for its second call. `color_by` is a numeric field of operations, such as `"elapsed_s"`, or a
        number for each operation. `gradient=trace.gradients` marks the operations that a backward pass reached.
        """
        from layerscope.views.draw.output import draw_trace
        from layerscope.views.draw.picture import DrawOptions

        options = DrawOptions(depth, rolled, focus, color_by, gradient, expanded)
        return draw_trace(self.record, self.naming, Path(path) if path is not None else None, options)

    def save(self, folder: str | Path, *, step: int | None = None) -> Path:
        """Write the trace into a run, a new one or one that is there; `ls.open(folder).traces()` reads it back.

        `step` is the step of the run. The lines of code around its operations are saved, too.
        """
        from layerscope.store.folder import run_at
        from layerscope.store.traces import StoredTrace, write_trace

        last = {index: gradients[-1] for index, gradients in self.gradients.items() if gradients}
        code = code_of(self.record) if self.code is None else self.code
        stored = StoredTrace(self.record, _arrays(self.values), _arrays(last), code, step)
        return write_trace(run_at(folder), stored)

    def export(self, path: str | Path) -> None:
        """Write the trace as one file: `.html`, to look at and to mail, or `.json`, everything but the values."""
        from layerscope.server.one_file import report
        from layerscope.store.traces import to_json

        target = Path(path)
        if target.suffix == ".json":
            target.write_text(json.dumps({**to_json(self.record), "labels": self.labels}), encoding="utf-8")
        elif target.suffix == ".html":
            with TemporaryDirectory() as folder:
                target.write_text(report(self._run_in(folder), start=TRACES_VIEW).html, encoding="utf-8")
        else:
            ending = target.suffix or target.name
            raise ArgumentError(f"A trace is exported as .html or .json, not as {ending!r}. To keep values, save().")

    def show(self) -> object:
        """The trace to look at: in a notebook a widget, as last line of a cell; elsewhere it opens in the browser."""
        from layerscope.widgets import show

        folder = TemporaryDirectory()
        return show(self._run_in(folder.name), TRACES_VIEW, keep=folder)

    def _run_in(self, folder: str) -> Path:
        from layerscope.widgets import folder_name

        return self.save(Path(folder) / folder_name(self.record.model)).parents[1]

    def _live(self, call: str) -> Engine:
        if self.engine is None:
            raise StateError(f"{call} needs the model, and this trace was read from a run. Trace the model again.")
        return self.engine

    def __repr__(self) -> str:
        from layerscope.views.trace_text import overview_text

        return overview_text(self.record, self.naming, self.relations, set(self.values))

    def _repr_html_(self) -> str:
        return self.draw()


def _edit(edit: Edit | Tensor) -> Edit:
    return edit if callable(edit) else lambda result: edit


def stored_trace(stored: StoredTrace) -> Trace:
    """A trace that was read from a run: values are numpy arrays, and nothing can be run again."""
    gradients = {index: [array] for index, array in stored.gradients.items()}
    return Trace(stored.record, stored.values, gradients=gradients, code=stored.code)


def _arrays(values: Mapping[int, Tensor]) -> dict[int, npt.NDArray[Any]]:
    arrays = {index: as_array(value) for index, value in values.items()}
    return {index: array for index, array in arrays.items() if array is not None}


def as_array(value: Tensor) -> npt.NDArray[Any] | None:
    """A tensor as numpy array; formats that numpy lacks as float32, which holds them; None for what has no elements."""
    if isinstance(value, np.ndarray):
        return value
    plain = value.detach()
    if plain.is_meta or plain.is_nested or plain.is_quantized or type(plain).__name__ == "FakeTensor":
        return None
    plain = plain.to_dense() if str(plain.layout) != "torch.strided" else plain
    plain = plain.cpu().resolve_conj().resolve_neg()
    narrow = str(plain.dtype).startswith(("torch.bfloat16", "torch.float8"))
    array: npt.NDArray[Any] = (plain.float() if narrow else plain).numpy()
    return array


def corner(value: Tensor, size: int = 5) -> str:
    """The first numbers of a tensor: of a matrix its upper left corner, of more dimensions that of the first matrix."""
    detach = getattr(value, "detach", None)
    plain = detach() if callable(detach) else value
    while plain.ndim > 2:
        plain = plain[0]
    cut = plain[tuple(slice(0, size) for _ in range(plain.ndim))] if plain.ndim else plain
    return f"{cut}{'...' if tuple(cut.shape) != tuple(value.shape) else ''}"


def compare(first: Trace, second: Trace) -> Table:
    """One row for each operation that both traces kept a value of: the largest and the relative difference.

    Operations are matched by label: the passes must have the same structure, as those of `Trace.rerun` have.
    `relative` is the norm of the difference as a share of the norm of the first; NaN counts as equal to NaN. All three
    are null where there are no values, as on the meta device.
    """
    others = {label: index for index, label in enumerate(second.labels)}
    pairs = [(label, i, others[label]) for i, label in enumerate(first.labels) if label in others]
    shared = [(label, i, j) for label, i, j in pairs if i in first.values and j in second.values]
    if not shared:
        raise SelectError("The two traces share no operation whose value both kept. Trace both with save='all'.")
    differences = [_difference(as_array(first.values[i]), as_array(second.values[j])) for _, i, j in shared]
    columns = {
        "label": [label for label, _, _ in shared],
        "function": [first.record.operations[i].function for _, i, _ in shared],
        "equal": [equal for equal, _, _ in differences],
        "largest": [largest for _, largest, _ in differences],
        "relative": [relative for _, _, relative in differences],
    }
    return Table(pa.table(columns))


def _difference(
    one: npt.NDArray[np.generic] | None, other: npt.NDArray[np.generic] | None
) -> tuple[bool | None, float | None, float | None]:
    if one is None or other is None:  # meta and fake tensors have nothing to compare
        return None, None, None
    if one.shape != other.shape:
        return False, None, None
    wide = np.complex128 if np.iscomplexobj(one) or np.iscomplexobj(other) else np.float64
    a, b = one.astype(wide), other.astype(wide)
    equal = np.array_equal(a, b, equal_nan=True)
    with np.errstate(invalid="ignore"):
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, a - b)
    size = float(np.linalg.norm(np.nan_to_num(a.ravel())))
    distance = float(np.linalg.norm(apart.ravel()))
    return equal, float(np.abs(apart).max(initial=0.0)), distance / size if size else distance
