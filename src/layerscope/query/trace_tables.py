"""A trace as tables, and its operations by key, name or pattern."""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pyarrow as pa

from layerscope.errors import SelectError
from layerscope.graph.layers import Naming, Relations
from layerscope.model.patterns import nearest
from layerscope.model.trace_record import Code, CodeFrame, Operation, Snippet, StackFrame, TraceRecord
from layerscope.query.tables import Table

Key = str | int
Selector = Key | Callable[[Operation], bool]


class Lookup:
    """Finds operations of one trace by any of their names."""

    def __init__(self, record: TraceRecord, naming: Naming) -> None:
        self._record = record
        self._naming = naming
        self._by_name: dict[str, tuple[int, ...]] = {}
        for layer, members in enumerate(naming.members):
            label = naming.labels[layer]
            for name in (label, label.rpartition("_")[0]):
                self._by_name[name] = members
                for number, member in enumerate(members, start=1):
                    self._by_name[f"{name}:{number}"] = (member,)
        self._by_module = self._modules()

    def _modules(self) -> dict[str, tuple[int, ...]]:
        """The outputs of each module: those of its last call, and of each call by its number."""
        outputs: dict[str, tuple[int, ...]] = {}
        for call in self._record.calls:
            if call.outputs and call.path:
                outputs[call.path] = outputs[f"{call.path}:{call.number}"] = call.outputs
        return outputs

    def one(self, key: Key) -> tuple[int, ...]:
        """The operation a key names, or all passes of the layer it names; an exact name beats a substring."""
        if isinstance(key, int):
            return (self._ordinal(key),)
        if key in self._by_name:
            return self._by_name[key]
        if key in self._by_module:
            return self._by_module[key][-1:]
        matches = self.many([key])
        layers = dict.fromkeys(self._naming.layer[match] for match in matches)
        if len(layers) == 1:
            return self._naming.members[next(iter(layers))]
        labels = [self._naming.labels[layer] for layer in layers]
        shown = ", ".join(labels[:8]) + (" …" if len(labels) > 8 else "")
        raise SelectError(f"{key!r} matches {len(labels)} operations: {shown}. Give one of them, or use find({key!r}).")

    def many(self, selectors: Iterable[Selector]) -> list[int]:
        """Operations that any of the selectors names, in order; each selector must name some."""
        operations: set[int] = set()
        for selector in selectors:
            operations.update(self._selected(selector))
        return sorted(operations)

    def _selected(self, selector: Selector) -> Sequence[int]:
        if callable(selector):
            return [operation.index for operation in self._record.operations if selector(operation)]
        if isinstance(selector, int):
            return [self._ordinal(selector)]
        if selector in self._by_name:
            return self._by_name[selector]
        if selector in self._by_module:
            return self._by_module[selector]
        matches = self._matching(selector)
        if not matches:
            names = (*self._naming.labels, *self._by_module)
            raise SelectError(f"No operation or module is called {selector!r}. {nearest(selector, names)}")
        return matches

    def _matching(self, pattern: str) -> list[int]:
        glob = pattern if re.search(r"[*?\[]", pattern) else f"*{pattern}*"
        names = {name for name in (*self._naming.labels, *self._by_module) if fnmatchcase(name, glob)}
        by_label = [
            m
            for layer, members in enumerate(self._naming.members)
            if self._naming.labels[layer] in names
            for m in members
        ]
        return sorted(
            {*by_label, *(output for name in names if name in self._by_module for output in self._by_module[name])}
        )

    def _ordinal(self, position: int) -> int:
        count = len(self._record.operations)
        if not -count <= position < count:
            raise SelectError(
                f"There is no operation {position}: the pass has {count}, from 0 to {count - 1} (or -{count} to -1)."
            )
        return position % count

    def keys(self, operation: int) -> list[str]:
        """Every key of the operation."""
        layer = self._naming.layer[operation]
        label, passes = self._naming.labels[layer], len(self._naming.members[layer])
        number = self._naming.number[operation]
        names = [label] if passes == 1 else []
        modules = [name for name, outputs in self._by_module.items() if outputs[-1] == operation]
        return [str(operation - len(self._record.operations)), str(operation), *names, f"{label}:{number}", *modules]


AROUND = 2  # lines before and after


def code_of(record: TraceRecord) -> dict[tuple[str, int], Snippet]:
    """The code around every line of the pass, as the files are now; those that cannot be read are left out."""
    frames = {frame for operation in record.operations for frame in operation.frames}
    frames.update(frame for call in record.calls for frame in call.frames)
    snippets = {(frame.file, frame.line): snippet(frame) for frame in sorted(frames)}
    return {line: snippet for line, snippet in snippets.items() if snippet[1]}


def snippet(frame: StackFrame) -> Snippet:
    """The code around one line; no lines where the file cannot be read."""
    lines = linecache.getlines(frame.file)
    first = max(frame.line - AROUND, 1)
    return first, tuple(line.rstrip() for line in lines[first - 1 : frame.line + AROUND])


def stack_of(record: TraceRecord, operation: int, code: Code | None) -> Iterator[CodeFrame]:
    """Where in the code an operation was called, innermost first; without `code` the files are read."""
    around: int | None = record.operations[operation].call
    frames = record.operations[operation].frames
    while True:
        for frame in frames:
            lines = snippet(frame) if code is None else code.get((frame.file, frame.line), (0, ()))
            yield CodeFrame(*frame, *lines)
        if around is None:
            return
        frames, around = record.calls[around].frames, record.calls[around].parent


def operations_table(record: TraceRecord, naming: Naming, relations: Relations) -> Table:
    """One row per operation: names, place in the graph, shapes, costs, circumstances."""
    operations = record.operations
    from_input, to_output = relations.from_input, relations.to_output
    columns = {
        "label": [naming.label(op.index) for op in operations],
        "layer": [naming.labels[naming.layer[op.index]] for op in operations],
        "pass": list(naming.number),
        "passes": [len(naming.members[layer]) for layer in naming.layer],
        "role": [op.role.value for op in operations],
        "function": [op.function for op in operations],
        "module": [record.calls[op.call].path for op in operations],
        "module_call": [record.calls[op.call].number for op in operations],
        "parents": [[naming.label(p.operation) for p in op.parents] for op in operations],
        "parent_arguments": [[p.argument for p in op.parents] for op in operations],
        "children": [[naming.label(child) for child in children] for children in relations.children],
        "child_arguments": [list(children.values()) for children in relations.children],
        "is_branch": [relations.is_branch(op.index) for op in operations],
        "is_merge": [relations.is_merge(op.index) for op in operations],
        "parameters": [list(op.parameters) for op in operations],
        "buffers": [list(op.buffers) for op in operations],
        "written": [list(op.written) for op in operations],
        "shape": [list(op.shape) for op in operations],
        "dtype": [op.dtype for op in operations],
        "device": [op.device for op in operations],
        "size_bytes": [op.size_bytes for op in operations],
        "flops": [op.flops for op in operations],
        "elapsed_s": [op.elapsed_s for op in operations],
        "grad_fn": [op.grad_fn for op in operations],
        "arguments": [", ".join(f"{name}={text}" for name, text in op.arguments.items()) for op in operations],
        "in_place": [op.in_place for op in operations],
        "is_random": [op.is_random for op in operations],
        "grad_mode": [op.grad_mode for op in operations],
        "autocast": [op.autocast for op in operations],
        "from_input": [distance and distance.shortest for distance in from_input],
        "from_input_longest": [distance and distance.longest for distance in from_input],
        "to_output": [distance and distance.shortest for distance in to_output],
        "to_output_longest": [distance and distance.longest for distance in to_output],
        "file": [op.frames[0].file if op.frames else None for op in operations],
        "line": [op.frames[0].line if op.frames else None for op in operations],
    }
    return Table(pa.table(columns))


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module: its class, the outputs of its first call, and the cost of all its calls."""

    path: str
    class_name: str
    depth: int
    calls: int
    output_shapes: tuple[tuple[int, ...], ...]
    output_bytes: int
    parameters: int  # elements of its own and its children's
    trainable: int
    flops: int  # of all its calls, children included
    elapsed_s: float


def module_rows(record: TraceRecord) -> list[ModuleRow]:
    """A row for every module, parents before their children."""
    flops = _flops(record)
    rows = []
    for path, class_name in _ordered(record):
        calls = [index for index, call in enumerate(record.calls) if call.path == path and call.number]
        first = record.calls[calls[0]].outputs if calls else ()
        owned = [p for p in record.parameters if not path or p.name.startswith(f"{path}.")]
        rows.append(
            ModuleRow(
                path=path,
                class_name=class_name,
                depth=path.count(".") + 1 if path else 0,
                calls=len(calls),
                output_shapes=tuple(record.operations[output].shape for output in first),
                output_bytes=sum(record.operations[output].size_bytes for output in first),
                parameters=sum(math.prod(p.shape) for p in owned),
                trainable=sum(math.prod(p.shape) for p in owned if p.trainable),
                flops=sum(flops[index] for index in calls),
                elapsed_s=sum(record.calls[index].elapsed_s for index in calls),
            )
        )
    return rows


def _ordered(record: TraceRecord) -> list[tuple[str, str]]:
    """Modules in depth-first order of registration."""
    position = {path: index for index, (path, _) in enumerate(record.modules)}

    def key(path: str) -> tuple[int, ...]:
        parts = path.split(".") if path else []
        prefixes = [".".join(parts[: n + 1]) for n in range(len(parts))]
        return tuple(position.get(prefix, 0) for prefix in prefixes)

    return sorted(record.modules, key=lambda item: key(item[0]))


def _flops(record: TraceRecord) -> list[int]:
    """Operations of each module call, those of calls inside it included."""
    total = [0] * len(record.calls)
    for operation in record.operations:
        total[operation.call] += operation.flops or 0
    for index in range(len(record.calls) - 1, 0, -1):  # a call comes after the one it happened in
        parent = record.calls[index].parent
        if parent is not None:
            total[parent] += total[index]
    return total


def summary_table(rows: list[ModuleRow]) -> Table:
    """The rows as a table."""
    names = (
        "path",
        "class_name",
        "depth",
        "calls",
        "output_shapes",
        "output_bytes",
        "parameters",
        "trainable",
        "flops",
        "elapsed_s",
    )
    return Table(pa.table({name: [_plain(getattr(row, name)) for row in rows] for name in names}))


def _plain(value: object) -> object:
    return [list(shape) for shape in value] if isinstance(value, tuple) else value
