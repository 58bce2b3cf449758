"""Stored traces: their records, and their tensors in safetensors files, each verified when it is read."""

from __future__ import annotations

import base64
import gc
import json
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from layerscope.errors import FormatError, StoreError
from layerscope.model.trace_record import Code, ModuleCallRecord, Operation, ParameterRecord, StackFrame, TraceRecord
from layerscope.store.files import Directory, checksum, checksum_text, damaged, opened, read_range
from layerscope.store.manifests import read_json, unreadable, whole, write_json
from layerscope.store.trace_operations import operations_file, read_operations

Arrays = Mapping[int, npt.NDArray[Any]]  # operation → array; Any: one of DTYPES
Slices = tuple[int | slice, ...]  # one index or range per axis
DTYPES = {  # safetensors name → numpy dtype
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    "BOOL": np.dtype(bool),
    "C64": np.dtype("<c8"),
}
MOST_HEAD = 64 << 20  # bytes of the header; see docs/format.md
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


def tensors_file(arrays: Arrays) -> tuple[bytes, str]:
    """A file of tensors with their checksums in its metadata, and the checksum of its header."""
    ordered = {number: np.asarray(arrays[number], order="C") for number in sorted(arrays)}
    sums = np.array([checksum(array.tobytes()) for array in ordered.values()], "<u8").tobytes()
    tensors = {str(number): array for number, array in ordered.items()}
    content = save(tensors, metadata={"checksums": base64.b64encode(sums).decode()})
    return content, checksum_text(content[: 8 + int.from_bytes(content[:8], "little")])


class StoredTensors:
    """The tensors in a file of a trace, by operation, read on demand."""

    def __init__(self, folder: Path, name: str, given: str) -> None:
        self._folder, self._name = folder, name
        with self._readable() as handle:
            size = os.fstat(handle).st_size
            length = 8 + int.from_bytes(read_range(handle, 0, 8), "little")
            head = read_range(handle, 0, length) if length <= min(size, MOST_HEAD) else b""
            if checksum_text(head) != given:
                raise ValueError("its head does not match its checksum")
            about = json.loads(head[8:])
            sums = np.frombuffer(base64.b64decode(about.pop("__metadata__")["checksums"]), "<u8").tolist()
            entries = {int(key): about[key] for key in sorted(about, key=int)}
            self._sums = dict(zip(entries, sums, strict=True))
            self._types = {key: DTYPES[entry["dtype"]] for key, entry in entries.items()}
            self.shapes = {key: tuple(map(int, entry["shape"])) for key, entry in entries.items()}
            self._starts = {key: length + int(entry["data_offsets"][0]) for key, entry in entries.items()}
            if any(start > size or min(self.shapes[key], default=0) < 0 for key, start in self._starts.items()):
                raise ValueError("a tensor is not inside the file")

    @contextmanager
    def _readable(self) -> Iterator[int]:
        run, traces, name = self._folder.parent.parent, self._folder.parent.name, self._folder.name
        try:
            with opened(run, traces, name) as directory, directory.open(self._name) as handle:
                yield handle
        except FormatError:
            raise
        except _UNREADABLE as error:
            raise damaged(self._folder / self._name, " ".join(str(error).split())) from None

    def read(self, operation: int, part: Slices = ()) -> npt.NDArray[Any]:
        """A tensor, or a slice of it."""
        with self._readable() as handle:
            shape, dtype = self.shapes[operation], self._types[operation]
            size = math.prod(shape) * dtype.itemsize
            if size > os.fstat(handle).st_size:
                raise ValueError(f"the tensor of operation {operation} is larger than the file")
            content = read_range(handle, self._starts[operation], size)
            if checksum(content) != self._sums[operation]:
                raise ValueError(f"the tensor of operation {operation} does not match its checksum")
            whole = np.frombuffer(content, dtype).reshape(shape)
            return np.array(whole[part] if part else whole)

    def all(self) -> dict[int, npt.NDArray[Any]]:
        """Every tensor."""
        return {operation: self.read(operation) for operation in self.shapes}


TRACES = "traces"
RECORD, OPERATIONS, VALUES, GRADIENTS = "trace.json", "operations.arrow", "values.safetensors", "gradients.safetensors"
_NAME = re.compile(r"[0-9]{6,9}")
KEPT_DTYPES = frozenset(DTYPES.values())
_LISTS = frozenset({"shape", "inputs", "outputs", "parents", "parameters", "buffers", "written"})
_Row = TypeVar("_Row", ModuleCallRecord, ParameterRecord)


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """A trace in a run folder."""

    record: TraceRecord
    values: Arrays
    gradients: Arrays
    code: Code = field(default_factory=dict)  # source code at the time of the trace
    step: int | None = None  # step of the run


@dataclass(frozen=True, slots=True)
class TraceHead:
    """A stored trace without its tensors, and the checksums of their files."""

    record: TraceRecord
    code: Code
    step: int | None
    checksums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TraceOutline:
    """The entry of a trace in a list of traces."""

    model: str
    operations: int
    values: int  # operations whose value was kept
    gradients: int
    elapsed_s: float
    failure: str | None
    step: int | None


def write_trace(folder: Path, stored: StoredTrace) -> Path:
    """Write a trace into a run folder; it appears completely or not at all."""
    try:
        with opened(folder) as run:
            run.make(TRACES)
        with opened(folder, TRACES) as traces:
            temporary = f".{secrets.token_hex(8)}"
            traces.make(temporary)
            with opened(folder, TRACES, temporary) as directory:
                _write_files(directory, stored)
            return folder / TRACES / _renamed(traces, temporary)
    except OSError as error:
        raise StoreError(
            f"The trace cannot be written to {folder}: {error.strerror or error}. Save it elsewhere."
        ) from None


def _write_files(directory: Directory, stored: StoredTrace) -> None:
    frames: dict[StackFrame, int] = {}
    kept = {
        what: {number: array for number, array in arrays.items() if array.dtype in KEPT_DTYPES}
        for what, arrays in (("values", stored.values), ("gradients", stored.gradients))
    }
    content = operations_file(stored.record.operations, frames)
    directory.replace(OPERATIONS, content)
    checksums = {OPERATIONS: checksum_text(content)}
    for what, name in (("values", VALUES), ("gradients", GRADIENTS)):
        content, checksums[name] = tensors_file(kept[what])
        directory.replace(name, content)
    about: dict[str, Any] = {"step": stored.step, "checksums": checksums}
    about["code"] = [[*at, *snippet] for at, snippet in stored.code.items()]
    about["operations"] = len(stored.record.operations)
    about |= {what: len(arrays) for what, arrays in kept.items()}
    write_json(directory, RECORD, "trace", {**about, **_circumstances(stored.record, frames)})


def _renamed(traces: Directory, temporary: str) -> str:
    number = 1 + max(map(int, filter(_NAME.fullmatch, traces.folders())), default=0)
    while True:
        target = f"{number:06}"
        try:
            traces.rename(temporary, target)
        except OSError:
            if target not in traces.folders():
                raise
            number += 1
        else:
            return target


def trace_folders(folder: Path) -> list[Path]:
    """The traces of a run, oldest first."""
    try:
        with opened(folder, TRACES) as traces:
            return sorted(folder / TRACES / name for name in traces.folders() if _NAME.fullmatch(name))
    except FileNotFoundError:
        return []


def traces_revision(folder: Path) -> int:
    """A number that changes when a trace is added to a run."""
    try:
        return (folder / TRACES).lstat().st_mtime_ns
    except FileNotFoundError:
        return 0


def trace_revision(folder: Path) -> int:
    """A number that changes when a trace is deleted and another one saved under its name."""
    with _readable(folder) as directory:
        return directory.stat(RECORD).st_mtime_ns


def read_trace(folder: Path) -> StoredTrace:
    """A stored trace."""
    head = read_head(folder)
    values, gradients = (tensors_of(folder, name, head).all() for name in (VALUES, GRADIENTS))
    return StoredTrace(head.record, values, gradients, head.code, head.step)


def tensors_of(folder: Path, name: str, head: TraceHead) -> StoredTensors:
    """The values or gradients of a trace, read on demand."""
    return StoredTensors(folder, name, head.checksums[name])


def read_head(folder: Path) -> TraceHead:
    """A stored trace without its tensors."""
    with _readable(folder) as directory, without_collection():
        plain = read_json(directory, RECORD, "trace")
        outline = _outline(plain)
        frames = [StackFrame(*frame) for frame in plain["frames"]]
        calls = tuple(_from_json(ModuleCallRecord, row, frames) for row in plain["calls"])
        checksums = {name: str(plain["checksums"][name]) for name in (OPERATIONS, VALUES, GRADIENTS)}
        paths = [call.path for call in calls]
        record = TraceRecord(
            model=outline.model,
            operations=read_operations(directory, OPERATIONS, checksums[OPERATIONS], frames, paths),
            calls=calls,
            parameters=tuple(_from_json(ParameterRecord, row, frames) for row in plain["parameters"]),
            modules=tuple((path, name) for path, name in plain["modules"]),
            elapsed_s=outline.elapsed_s,
            seed=plain["seed"],
            failure=outline.failure,
            stale=frozenset(plain["stale"]),
        )
        code = {(file, line): (first, tuple(lines)) for file, line, first, lines in plain["code"]}
        return TraceHead(record, code, outline.step, checksums)


def read_outline(folder: Path) -> TraceOutline:
    """The entry of a trace in a list of traces; reads little."""
    with _readable(folder) as directory:
        return _outline(read_json(directory, RECORD, "trace"))


def _outline(plain: Mapping[str, Any]) -> TraceOutline:
    """The fields of trace.json about the whole trace, with their types checked."""
    elapsed_s, failure, step = float(plain["elapsed_s"]), plain["failure"], plain["step"]
    if not (math.isfinite(elapsed_s) and isinstance(plain["model"], str) and isinstance(failure, str | None)):
        raise ValueError("elapsed_s, model or failure")
    counts = {name: whole(plain[name]) for name in ("operations", "values", "gradients")}
    step = None if step is None else whole(step)
    return TraceOutline(model=plain["model"], elapsed_s=elapsed_s, failure=failure, step=step, **counts)


@contextmanager
def _readable(folder: Path) -> Iterator[Directory]:
    run, name = folder.parent.parent, folder.name
    try:
        with opened(run, TRACES, name) as directory:
            yield directory
    except FileNotFoundError as error:
        missing = folder / Path(error.filename or RECORD).name
        raise damaged(missing, "it is missing", "Save the trace again.") from None
    except OSError as error:
        raise unreadable(folder, error) from None
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise damaged(folder / RECORD, f"a key is missing or wrong ({error})", "Save the trace again.") from None


@contextmanager
def without_collection() -> Iterator[None]:
    """A `with` block without garbage collection, which would take half of the time for many objects."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def to_json(record: TraceRecord) -> dict[str, Any]:
    """The record as JSON; each line of code is stored once."""
    frames: dict[StackFrame, int] = {}
    operations = [_row(operation, frames) for operation in record.operations]
    return {"operations": operations, **_circumstances(record, frames)}


def _row(item: Operation | ModuleCallRecord, frames: dict[StackFrame, int]) -> dict[str, Any]:
    return {**item._asdict(), "frames": [frames.setdefault(frame, len(frames)) for frame in item.frames]}


def _circumstances(record: TraceRecord, frames: dict[StackFrame, int]) -> dict[str, Any]:
    """Everything except the operations; `frames` are their lines of code."""
    calls = [_row(call, frames) for call in record.calls]
    return {
        "model": record.model,
        "calls": calls,
        "parameters": [parameter._asdict() for parameter in record.parameters],
        "modules": record.modules,
        "elapsed_s": record.elapsed_s,
        "seed": record.seed,
        "failure": record.failure,
        "stale": sorted(record.stale),
        "frames": list(frames),
    }


def _from_json(kind: type[_Row], row: Mapping[str, Any], frames: Sequence[StackFrame]) -> _Row:
    """A named tuple from JSON; unknown fields are ignored, missing ones get their default."""
    fields = {name: row[name] for name in kind._fields if name in row or name not in kind._field_defaults}
    for name in _LISTS & fields.keys():
        fields[name] = tuple(fields[name])
    if "frames" in fields:
        fields["frames"] = tuple([frames[at] for at in fields["frames"]])
    return kind(**fields)
