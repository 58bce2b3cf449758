"""The operations of a stored trace as columns of an Arrow file; records are built on request."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa

from layerscope.errors import FormatError
from layerscope.model.records import Ids, Ints
from layerscope.model.trace_record import Operation, Outline, Parent, Role, StackFrame
from layerscope.store.columns import Numbers, dtype_of, is_compressed, json_text, numbers, texts, values
from layerscope.store.files import Directory, checksum_text, damaged
from layerscope.store.format import VERSION
from layerscope.store.manifests import check_version

_NUMBERS = {
    "call": pa.int32(),
    "site": pa.int64(),
    "lead": pa.int32(),
    "position": pa.int32(),
    "size_bytes": pa.int64(),
    "flops": pa.int64(),  # -1 if unknown
    "elapsed_s": pa.float64(),
    "in_place": pa.uint8(),
    "is_random": pa.uint8(),
    "grad_mode": pa.uint8(),
}
MOST_BYTES = 1 << 30  # of a file of operations; docs/format.md states it
_MAGIC = b"ARROW1\0\0"
_UNREADABLE = (
    *(pa.ArrowException, OSError, KeyError, TypeError, ValueError, IndexError),
    *(RecursionError, StopIteration, struct.error, EOFError, AttributeError),
)
_COMMON = pa.dictionary(pa.int32(), pa.string())  # few distinct values: each is stored once, as JSON
_TUPLES = ("parent_arguments", "parameters", "buffers", "frames", "shape", "written")
_TEXTS = ("role", "function", "arguments", "dtype", "device", "grad_fn", "autocast")
_SCHEMA = pa.schema(
    [
        *_NUMBERS.items(),
        *((name, _COMMON) for name in (*_TEXTS, *_TUPLES)),
        ("parents", pa.list_(pa.int32())),
    ],
    {"format": "layerscope-operations", "version": str(VERSION)},
)


def operations_file(operations: Sequence[Operation], frames: dict[StackFrame, int]) -> bytes:
    """The operations of a trace as an Arrow file; their lines of code are appended to `frames` and numbered."""

    def frame_numbers(op: Operation) -> list[int]:
        return [frames.setdefault(frame, len(frames)) for frame in op.frames]

    rows = list(operations)
    parents = [parent.operation for op in rows for parent in op.parents]
    ends = np.cumsum([0, *(len(op.parents) for op in rows)], dtype=np.int32)
    made: dict[str, Callable[[Operation], object]] = {
        "parent_arguments": lambda op: [parent.argument for parent in op.parents],
        "frames": frame_numbers,
        "flops": lambda op: -1 if op.flops is None else op.flops,
    }
    columns: list[pa.Array] = []
    for name in _SCHEMA.names[:-1]:
        value = made.get(name)
        items = [getattr(op, name) for op in rows] if value is None else [value(op) for op in rows]
        columns.append(numbers(np.array(items, dtype_of(_NUMBERS[name]))) if name in _NUMBERS else _common(items))
    columns.append(pa.ListArray.from_arrays(numbers(ends), numbers(np.array(parents, np.int32))))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as file:
        file.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
    return bytes(sink.getvalue())


def _common(values: Iterable[object]) -> pa.DictionaryArray:
    known: dict[str, int] = {}
    at = [known.setdefault(json_text(value), len(known)) for value in values]
    return pa.DictionaryArray.from_arrays(numbers(np.array(at, np.int32)), texts(list(known)))


def read_operations(
    directory: Directory, name: str, given: str, frames: Sequence[StackFrame], paths: Sequence[str]
) -> StoredOperations:
    """The operations of a file with the given checksum; `paths` are those of the module calls."""
    path, content = directory.path / name, directory.read(name, MOST_BYTES)
    if checksum_text(content) != given:
        raise damaged(path, "its bytes do not match their checksum", "Save the trace again.")
    try:
        stream = _stream(content)
        about = {key.decode(): value.decode() for key, value in (stream.schema.metadata or {}).items()}
        if about.get("format") != "layerscope-operations":
            raise damaged(path, "it holds no operations of a trace")
        check_version(path, int(about["version"][:9]) if about.get("version", "").isdecimal() else None)
        batch = stream.read_next_batch()
        batch.validate(full=True)
        if nulls := [name for name, column in zip(batch.schema.names, batch.columns, strict=True) if column.null_count]:
            raise damaged(path, f"its column {nulls[0]!r} has nulls")
        operations = StoredOperations(batch, frames, paths)
    except FormatError:
        raise
    except _UNREADABLE as error:
        raise damaged(path, " ".join(str(error).split())) from None
    if not operations.is_sound():
        raise damaged(path, "an operation refers to something that is not there")
    return operations


def _stream(content: bytes) -> pa.RecordBatchStreamReader:
    """The content of an Arrow file between magic bytes and footer; raises if it is compressed."""
    stream = pa.BufferReader(pa.py_buffer(content)[len(_MAGIC) :])
    if content[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is no Arrow file")
    messages = pa.ipc.MessageReader.open_stream(stream)
    if any(is_compressed(message) for message in messages if message.type != "schema"):
        raise ValueError("it is compressed")
    stream.seek(0)
    return pa.ipc.open_stream(stream)


class _Common(NamedTuple):
    """A column with few distinct values."""

    values: list[Any]  # Any: the type of the field
    at: Ids

    def all(self) -> list[Any]:
        return list(map(self.values.__getitem__, self.at.tolist()))


class StoredOperations(Sequence[Operation]):
    """The operations of a stored trace. Tens of thousands as objects would take seconds and hundreds of megabytes."""

    def __init__(self, batch: pa.RecordBatch, frames: Sequence[StackFrame], paths: Sequence[str]) -> None:
        self._count: int = batch.num_rows
        self._paths = paths
        self._numbers: dict[str, Numbers] = {name: values(batch.column(name)) for name in _NUMBERS}
        made: dict[str, Callable[[Any], object]] = dict.fromkeys(_TUPLES, tuple)
        made |= {"role": Role, "frames": lambda places: tuple([frames[at] for at in places])}
        self._common = {name: _read_common(batch, name, made.get(name)) for name in (*_TEXTS, *_TUPLES)}
        parents = batch.column("parents")
        self._ends: Ids = np.frombuffer(parents.buffers()[1], np.int32, self._count + 1, 4 * parents.offset)
        self._parents: Ids = values(parents.values)

    def is_sound(self) -> bool:
        """Whether all references of the operations are valid."""
        calls, lead, count = self._numbers["call"], self._numbers["lead"], self._count
        named = np.array([len(value) for value in self._common["parent_arguments"].values], np.int64)
        given = named[self._common["parent_arguments"].at] if len(named) else np.zeros(0, np.int64)
        return (
            _within(calls, len(self._paths))
            and _within(lead, count)
            and _within(self._parents, count)
            and bool(np.array_equal(given, np.diff(self._ends)))
        )

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Operation: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Operation, ...]: ...
    def __getitem__(self, index: int | slice) -> Operation | tuple[Operation, ...]:
        if isinstance(index, slice):
            return tuple([self[at] for at in range(*index.indices(self._count))])
        at = range(self._count)[index]
        fields = {name: column[at].item() for name, column in self._numbers.items()}
        fields |= {name: column.values[column.at[at]] for name, column in self._common.items()}
        fields["parents"] = self._parents[self._ends[at] : self._ends[at + 1]].tolist()
        return _operation(at, fields)

    def __iter__(self) -> Iterator[Operation]:
        names = [*self._numbers, *self._common, "parents"]
        columns = [column.tolist() for column in self._numbers.values()]
        columns += [column.all() for column in self._common.values()]
        for at, row in enumerate(zip(*columns, self.column("parents"), strict=True)):
            yield _operation(at, dict(zip(names, row, strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))

    def column(self, name: str) -> Sequence[Any]:  # Any: the type of the field
        """One field of all operations; for `parents` only the indices of the operations."""
        if name == "parents":
            flat, ends = self._parents.tolist(), self._ends.tolist()
            return [flat[start:end] for start, end in pairwise(ends)]
        if name == "flops":
            return [None if flops < 0 else flops for flops in self._numbers[name].tolist()]
        if name in ("in_place", "is_random", "grad_mode"):
            return list(map(bool, self._numbers[name].tolist()))
        return list(self._numbers[name].tolist()) if name in self._numbers else self._common[name].all()

    def outlines(self) -> Iterator[Outline]:
        """The outlines of the operations, which determine their layers."""
        arguments = self._common["arguments"]
        items = [tuple(value.items()) for value in arguments.values]
        columns = zip(
            self.column("function"),
            self.column("position"),
            self.column("parameters"),
            self.column("site"),
            self.column("role"),
            self.column("call"),
            arguments.at.tolist(),
            self.column("parents"),
            self.column("buffers"),
            strict=True,
        )
        for function, position, parameters, site, role, call, at, parents, buffers in columns:
            given = site if role is Role.OPERATION else None
            yield function, position, parameters, given, self._paths[call], items[at], tuple(parents), buffers


def _read_common(batch: pa.RecordBatch, name: str, made: Callable[[Any], object] | None) -> _Common:
    """One column; for a field missing in older files, its default value."""
    if name not in batch.schema.names and name in Operation._field_defaults:
        return _Common([Operation._field_defaults[name]], np.zeros(batch.num_rows, np.int32))
    items = [json.loads(text) for text in batch.column(name).dictionary.to_pylist()]
    return _Common(items if made is None else [made(value) for value in items], values(batch.column(name).indices))


def _operation(index: int, fields: dict[str, Any]) -> Operation:  # Any: the types of the fields
    arguments = fields.pop("parent_arguments")
    fields["parents"] = tuple([Parent(*pair) for pair in zip(arguments, fields["parents"], strict=True)])
    fields["arguments"] = dict(fields["arguments"])
    fields["flops"] = None if fields["flops"] < 0 else fields["flops"]
    for name in ("in_place", "is_random", "grad_mode"):
        fields[name] = bool(fields[name])
    return Operation(index=index, **fields)


def _within(places: Ids | Ints, count: int) -> bool:
    return len(places) == 0 or (int(places.min()) >= 0 and int(places.max()) < count)
