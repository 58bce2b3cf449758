"""The graph of a run's modules as a view, and one number for each of its parts at one step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from layerscope.errors import SelectError, StoreError
from layerscope.graph.blocks import BlockRole
from layerscope.graph.module_blocks import MODEL, ModuleBlock, ModuleBlocks, ModuleFlows
from layerscope.graph.order import NO_TENSOR, GroupOrderings
from layerscope.model.records import CallGraph, CallNode, Flags, Floats, Ints, Kind
from layerscope.model.text import shape_text
from layerscope.query import tables
from layerscope.query.matrix import INF, MISSING, NAN, VALUE, Cells, Matrix, Question
from layerscope.query.tables import at_or_before, first_of_each
from layerscope.store.traces import read_head, trace_folders, traces_revision
from layerscope.views.heatmap import ColorScale, color_scale
from layerscope.views.nested_graph import (
    GroupOrder,
    GroupOrders,
    NestedGraph,
    box_width,
    facts_text,
    group_order,
    one_line,
    title_width,
)
from layerscope.views.open_run import OpenRun
from layerscope.views.trace_page import flops_of_calls

HEIGHT, MERGE = 38, (22, 10)  # of a box; width and height of a merge
SENT_WHOLE = 1500  # parts of a graph that is sent with the order of all its groups
FEW = 3  # a group with no more children than this is open at first
NO_CALLS = "Arrows are missing: no call of a module was seen. Boxes stand in the order in which the modules were made."
OF_PARAMETERS = {Kind.WEIGHT, Kind.WEIGHT_GRAD, Kind.UPDATE, Kind.OPTIMIZER, Kind.BUFFER}


def module_graph(run: OpenRun) -> ModuleGraph:
    """The graph of a run, made anew when calls were added."""
    folder = run.reader.folder

    def make() -> ModuleGraph:
        graph = run.reader.graph()
        if graph is None or not graph.modules:
            raise SelectError(f"The run {run.name!r} has no module graph: watch() was called without a model.")
        return ModuleGraph(graph, _flops(folder))

    return run.cache.graphs.get(run.id, make, (run.reader.graph_revision(), traces_revision(folder)))


def graph_groups(run: OpenRun, groups: Iterable[int]) -> GroupOrders:
    """The order of some groups, given by their numbers."""
    graph = module_graph(run)
    return GroupOrders(tuple(graph.group(index) for index in groups if graph.has_group(index)))


def graph_numbers(run: OpenRun, question: Question, step: int | None, every: int, *, tensors: bool) -> PartNumbers:
    """A statistic of one kind at one step: one number for each part that has it; with the names of the `tensors`.

    A part that was not recorded in the context asked for shows the first one that it was recorded in.
    """
    question = _recorded_question(run.reader.series(), question)
    matrices = [run.matrix(each) for each in _questions(run.reader.series(), question)]
    if not len(matrices[0].steps):
        raise SelectError(f"The run has no {question.stat!r} of {question.kind!r}. Choose what was recorded.")
    numbers = module_graph(run).numbers(matrices, step, every)
    return numbers if tensors else replace(numbers, sites=(), ports=())


def _flops(run: Path) -> dict[str, int]:
    """The FLOPs of every call in the newest trace of a run, by its site; nothing where there is no trace."""
    folders = trace_folders(run)
    if not folders:
        return {}
    try:
        return flops_of_calls(read_head(folders[-1]).record)
    except StoreError:  # the view of traces says why it cannot be read
        return {}


def _questions(series: pa.Table, question: Question) -> Iterator[Question]:
    """The question, then those about sites that it leaves without an answer: in other contexts, and attached tensors.

    These have neither outputs nor their gradients, but values and gradients of their own.
    """
    yield question
    of_tensors = {Kind.OUTPUT.value: Kind.TENSOR.value, Kind.OUTPUT_GRAD.value: Kind.TENSOR_GRAD.value}
    alike = series.filter(
        pa.array(tables.are(series, "mode", question.mode) & (tables.ints(series, "rank") == question.rank))
    )
    of = tables.rows_of_each(alike, "kind", "context")
    sites = alike.column("site").to_pylist()
    known = {sites[row] for row in of.get((question.kind, question.context), ())}
    for kind in (question.kind, of_tensors.get(question.kind)):
        for (of_kind, context), rows in of.items():
            if of_kind == kind and not known.issuperset(more := {sites[row] for row in rows}):
                known |= more
                yield replace(question, kind=of_kind, context=context)


def _recorded_question(series: pa.Table, question: Question) -> Question:
    """The question in its own mode and context, or where the kind has none of it, in those it has."""
    of_kind = tables.are(series, "kind", question.kind)
    if not of_kind.any():
        raise SelectError(f"The run has no {question.kind!r}. Choose a kind that was recorded.")
    in_mode = of_kind & tables.are(series, "mode", question.mode)
    fitting = in_mode if in_mode.any() else of_kind
    in_context = fitting & tables.are(series, "context", question.context)
    first = int(np.argmax(in_context if in_context.any() else fitting))
    mode, rank, context = (series[word][first].as_py() for word in ("mode", "rank", "context"))
    return replace(question, mode=mode, rank=rank, context=context)


class ModuleGraph:
    """The graph of one run, kept while the run is looked at."""

    def __init__(self, graph: CallGraph, flops: Mapping[str, int] | None = None) -> None:
        """`flops` are those of one pass by site, as far as they are known."""
        self.tree = ModuleBlocks(graph)
        self._flops = flops or {}
        self._tensors = ModuleFlows(self.tree)
        self._orders = GroupOrderings(self.tree.blocks, self._tensors)
        self._coloring: Coloring | None = None

    @cached_property
    def view(self) -> NestedGraph:
        """Everything that the page needs at first."""
        blocks = self.tree.blocks
        wording = _Wording(self.tree)
        words = [(wording.name(block), wording.detail(block)) for block in blocks]
        groups = [block.index for block in blocks if block.children]
        opened = list(self._opened())
        times = [
            len(_ran(self.tree, block)) // block.period if block.role is BlockRole.REPEAT else 1 for block in blocks
        ]
        sizes = [
            MERGE
            if block.role is BlockRole.MERGE
            else (box_width(*words[block.index], opens=bool(block.children), times=times[block.index]), HEIGHT)
            for block in blocks
        ]
        return NestedGraph(
            title=words[0][0],
            note=_note(self.tree),
            parents=tuple(block.parent for block in blocks),
            roles=tuple(block.role.value for block in blocks),
            names=tuple(name for name, _ in words),
            details=tuple(detail for _, detail in words),
            widths=tuple(width for width, _ in sizes),
            heights=tuple(height for _, height in sizes),
            title_widths=tuple(title_width(name) for name, _ in words),
            times=tuple(times),
            sites=tuple(block.site for block in blocks),
            facts=tuple(_facts(block, wording.parameters(block), self._flops.get(block.site, 0)) for block in blocks),
            opened=tuple(opened),
            groups=tuple(self.group(index) for index in (groups if len(blocks) <= SENT_WHOLE else opened)),
        )

    def group(self, index: int) -> GroupOrder:
        """The order of one group."""
        call = self.tree.blocks[index].call
        inputs, outputs = self._tensors.inputs(index), self._tensors.outputs(index)
        return group_order(
            index,
            self._orders.of(index),
            _ports(call.inputs if call else (), inputs),
            _ports(call.outputs if call else (), outputs),
        )

    def numbers(self, matrices: Sequence[Matrix], step: int | None, every: int = 1) -> PartNumbers:
        """A statistic at one step, of the kind of the first matrix; others hold that of parts without this kind.

        The scale of the colors is computed once for all steps.
        """
        if self._coloring is None or not self._coloring.is_of(matrices):
            self._coloring = Coloring(self.tree, matrices)
        return self._coloring.numbers(matrices, step, every)

    def has_group(self, index: int) -> bool:
        """Whether the number is that of a block with children."""
        return 0 <= index < len(self.tree.blocks) and bool(self.tree.blocks[index].children)

    def _opened(self) -> Iterator[int]:
        """The whole, and what is inside as long as there is next to nothing to see."""
        waiting = [0]
        while waiting:
            block = self.tree.blocks[waiting.pop()]
            if not block.children or (block.index and block.role is BlockRole.REPEAT):
                continue
            yield block.index
            ran = _ran(self.tree, block)
            if len(ran) <= FEW:
                waiting += ran


def _note(tree: ModuleBlocks) -> str:
    """What is missing in the picture."""
    if not tree.is_flow_known:
        return NO_CALLS
    names = list(dict.fromkeys(block.site for block in tree.without_flow()))
    if not names:
        return ""
    named = ", ".join(map(one_line, names[:3])) + (" …" if len(names) > 3 else "")
    return (
        f"Arrows are missing at {len(names)} call{'s' if len(names) > 1 else ''} ({named}): these were seen only in "
        "orders of calls that were not traced. An order that occurs again is traced then."
    )


def _ran(tree: ModuleBlocks, block: ModuleBlock) -> list[int]:
    return [child for child in block.children if tree.blocks[child].role is not BlockRole.MERGE]


def _ports(ports: Iterable[tuple[str, tuple[int, ...]]], tensors: Mapping[str, int]) -> dict[str, int]:
    """Name and shape of each port, with the tensor inside; a port that nothing is known of has none."""
    shapes = dict(ports)
    names = dict.fromkeys((*shapes, *tensors))
    return {
        f"{one_line(name)}\t{shape_text(shapes[name]) if name in shapes else ''}": tensors.get(name, NO_TENSOR)
        for name in names
    }


class _Wording:
    """The words on the parts of a graph."""

    def __init__(self, tree: ModuleBlocks) -> None:
        self._tree = tree
        self._elements: dict[int, int] = {}

    def name(self, block: ModuleBlock) -> str:
        """The attribute name, as seen from the call around it."""
        if block.role is BlockRole.MERGE:
            return ""
        if block.is_group and block.module is None:
            ran = [self._tree.blocks[child] for child in _ran(self._tree, block)]
            return f"{self.name(ran[0])} … {self.name(ran[-1])}" if ran else ""
        if block.is_group or (block.path == MODEL and block.role is not BlockRole.TENSOR):
            return one_line(block.module.class_name if block.module else MODEL)
        around = self._tree.blocks[self._tree.around(block.index)].path
        site = block.site.removeprefix(f"{around}.")
        return one_line(site)

    def detail(self, block: ModuleBlock) -> str:
        """Class and shape of the first output."""
        if block.role is BlockRole.MERGE:
            return ""
        if block.is_group:
            if block.module is not None:
                return ""  # it is called by its class
            kinds = [self._class_name(self._tree.blocks[child]) for child in _ran(self._tree, block)]
            return one_line(", ".join(dict.fromkeys(kinds)))
        shapes = block.call.outputs if block.call else ()
        shape = shape_text(shapes[0][1]) + (f" +{len(shapes) - 1}" if len(shapes) > 1 else "") if shapes else ""
        is_model = block.path == MODEL and block.role is not BlockRole.TENSOR  # it is called by its class
        class_name = "" if is_model else one_line(self._class_name(block))
        return " · ".join(filter(None, (class_name, shape)))

    def parameters(self, block: ModuleBlock) -> int:
        """Elements of all parameters inside; a module that is called twice counts once in each call."""
        if block.index not in self._elements:
            own = block.module.parameters if block.module and block.role is not BlockRole.TENSOR else 0
            inside = {self._tree.blocks[child].path or child: child for child in block.children}
            self._elements[block.index] = own + sum(
                self.parameters(self._tree.blocks[child])
                for child in (block.children if block.is_group else inside.values())
            )
        return self._elements[block.index]

    def _class_name(self, block: ModuleBlock) -> str:
        if block.role is BlockRole.TENSOR:
            return "named tensor"
        return block.module.class_name if block.module else ""


def _facts(block: ModuleBlock, parameters: int, flops: int) -> str:
    """What the tooltip says: one line each, key and value apart."""
    if block.role is BlockRole.MERGE:
        return ""
    rows = [("name", block.site)] if block.site else []
    if block.module is not None and block.role is not BlockRole.TENSOR:
        rows.append(("class", block.module.class_name))
    if block.call is not None:
        rows += [(port, shape_text(shape)) for port, shape in _distinct(block.call)]
    if parameters:
        rows.append(("parameters", f"{parameters:,}"))
    if flops and block.role is not BlockRole.TENSOR:
        rows.append(("FLOPs", f"{flops:,}"))
    if block.module is not None and block.role is not BlockRole.TENSOR:
        rows += list(_extra(block.module.detail))
    return facts_text(rows)


def _distinct(call: CallNode) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from call.inputs
    yield from (port for port in call.outputs if port not in call.inputs)


def _extra(detail: str) -> Iterator[tuple[str, str]]:
    """The items of an `extra_repr`: split at commas that are in no bracket."""
    item, depth = "", 0
    for character in f"{detail},":
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            key, equals, value = item.strip().partition("=")
            if key:
                yield (key, value) if equals and key.isidentifier() else ("argument", item.strip())
            item = ""
        else:
            item += character


@dataclass(frozen=True, slots=True)
class PartNumbers:
    """A statistic of each part that has it at its last recorded step at or before one, and the scale of the whole run.

    A block that was recorded only later shows its first step. NaN says that the tensor has elements that are NaN, Inf
    that it has infinite ones and none that is NaN.
    """

    kind: str
    stat: str
    mode: str
    context: str  # "" for none
    step: int  # the last one at which any block was recorded, at or before the step asked for
    parts: Ints
    steps: Ints  # of the parts
    contexts: tuple[str, ...]  # of the parts; none where all are in the one asked for
    sites: tuple[str, ...]  # of the tensors that color them, where that is asked for
    ports: tuple[str, ...]
    values: Floats
    scale: ColorScale  # of all steps


class Coloring:
    """Which tensors of some matrices color which parts of a graph, and their scale over all steps.

    A block takes the first matrix that has it, and of a site the first port. Parameters belong to every call of the
    module that has them; `weight` comes first.
    """

    def __init__(self, tree: ModuleBlocks, matrices: Sequence[Matrix]) -> None:
        self._columns: list[dict[int, int]] = []  # of each matrix, by block
        for matrix in matrices:
            colored = {block for columns in self._columns for block in columns}
            self._columns.append({block: at for block, at in _columns(tree, matrix).items() if block not in colored})
        self._scale = color_scale(np.concatenate([_values(*each) for each in self._each(matrices)]))
        self._of = [weakref.ref(matrix.values) for matrix in matrices]

    def is_of(self, matrices: Sequence[Matrix]) -> bool:
        """Whether it was made of these matrices."""
        return len(self._of) == len(matrices) and all(
            known() is matrix.values for known, matrix in zip(self._of, matrices, strict=True)
        )

    def numbers(self, matrices: Sequence[Matrix], step: int | None, every: int) -> PartNumbers:
        """The numbers at a step, the last one for None; one step of each `every` counts. There must be a step."""
        rows = [
            (
                block,
                int(matrix.steps[row]),
                matrix.question.context,
                *matrix.tensors[column],
                _number(matrix, row, column),
            )
            for matrix, columns in self._each(matrices)
            for block, column, row in _recorded(matrix, columns, step, every)
        ]
        parts, steps, contexts, sites, ports, values = zip(*rows, strict=True) if rows else ((),) * 6
        question, known = matrices[0].question, np.unique(np.array(steps or matrices[0].steps, np.int64))
        return PartNumbers(
            kind=question.kind,
            stat=question.stat,
            mode=question.mode,
            context=question.context,
            step=int(known[at_or_before(known, step)]),
            parts=np.array(parts, np.int64),
            steps=np.array(steps, np.int64),
            contexts=contexts if {*contexts} - {question.context} else (),
            sites=sites,
            ports=ports,
            values=np.array(values, np.float64),
            scale=self._scale,
        )

    def _each(self, matrices: Sequence[Matrix]) -> Iterator[tuple[Matrix, dict[int, int]]]:
        return zip(matrices, self._columns, strict=True)


def _columns(tree: ModuleBlocks, matrix: Matrix) -> dict[int, int]:
    """The column of each block that was recorded at any step."""
    owned = Kind(matrix.question.kind) in OF_PARAMETERS
    recorded: Flags = np.asarray(matrix.states.any(axis=0))
    sites = [(site, column) for column, (site, _) in enumerate(matrix.tensors) if recorded[column]]
    column_of: dict[str, int] = {}
    for site, column in sorted(sites, key=lambda entry: owned and entry[0].rpartition(".")[2] != "weight"):
        column_of.setdefault((site.rpartition(".")[0] or MODEL) if owned else site, column)
    keys = (block.path if owned and block.role is not BlockRole.TENSOR else block.site for block in tree.blocks)
    return {index: column_of[key] for index, key in enumerate(keys) if key in column_of}


def _values(matrix: Matrix, columns: dict[int, int]) -> Cells:
    """Every value of some columns."""
    shown = np.unique(np.array(list(columns.values()), np.int64))
    return np.asarray(matrix.values[:, shown][matrix.states[:, shown] == VALUE])


def _recorded(matrix: Matrix, columns: dict[int, int], step: int | None, every: int) -> Iterator[tuple[int, int, int]]:
    """Part, column and row of the last step at or before one at which each block was recorded, else of its first."""
    kept = first_of_each(matrix.steps, every)
    at, waiting = at_or_before(matrix.steps[kept], step), columns
    for row in (*kept[at::-1].tolist(), *kept[at + 1 :].tolist()):
        there: Flags = np.asarray(matrix.states[row] != MISSING)
        yield from ((block, column, row) for block, column in waiting.items() if there[column])
        waiting = {block: column for block, column in waiting.items() if not there[column]}
        if not waiting:
            return


def _number(matrix: Matrix, row: int, column: int) -> float:
    state = matrix.states[row, column]
    return np.nan if state == NAN else np.inf if state == INF else float(matrix.values[row, column])
