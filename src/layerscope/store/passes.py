"""Traces in a run folder: what a pass is as JSON, its operations as columns, values and gradients as safetensors."""

from __future__ import annotations

import gc
import json
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
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from layerscope.errors import StoreError
from layerscope.operations import Frame, ModuleCallRecord, Operation, ParameterRecord, Parent, PassRecord, Role
from layerscope.store.format import damaged, read_json, replace_file, sync_folder, write_json
from layerscope.store.pass_columns import read_operations, write_operations

TRACES = "traces"
RECORD, OPERATIONS, VALUES, GRADIENTS = "pass.json", "operations.arrow", "values.safetensors", "gradients.safetensors"
_NAME = re.compile(r"\d{6,}")
KEPT_DTYPES = frozenset(  # what safetensors can keep of numpy's types
    np.dtype(name)
    for name in (
        *("float64", "float32", "float16", "int64", "int32", "int16", "int8"),
        *("uint64", "uint32", "uint16", "uint8", "bool", "complex64"),
    )
)

_LISTS = frozenset({"shape", "inputs", "outputs", "parents", "parameters", "buffers", "written"})
_Row = TypeVar("_Row", Operation, ModuleCallRecord, ParameterRecord)

Arrays = Mapping[int, npt.NDArray[Any]]  # Any: one of KEPT_DTYPES; by operation
Snippet = tuple[int, tuple[str, ...]]  # number of the first line, and the lines
Code = Mapping[tuple[str, int], Snippet]  # file and line → the lines around it
Part = tuple[int | slice, ...]  # one index or range for each axis


@dataclass(frozen=True, slots=True)
class StoredPass:
    """A trace as it lies in a run folder."""

    record: PassRecord
    values: Arrays
    gradients: Arrays
    code: Code = field(default_factory=dict)  # as the files were when the trace was made
    step: int | None = None  # the step of the run it was taken at


@dataclass(frozen=True, slots=True)
class PassHead:
    """A stored trace without its tensors."""

    record: PassRecord
    code: Code
    step: int | None


@dataclass(frozen=True, slots=True)
class PassOutline:
    """What a list of traces says of one."""

    model: str
    operations: int
    values: int  # operations whose value was kept
    gradients: int
    elapsed_s: float
    failure: str | None
    step: int | None


def write_pass(folder: Path, stored: StoredPass) -> Path:
    """Write a trace into a run folder, beside those already there; it appears as a whole."""
    try:
        (folder / TRACES).mkdir(exist_ok=True)
        aside = folder / TRACES / f".{secrets.token_hex(8)}"
        aside.mkdir()
        frames: dict[Frame, int] = {}
        write_operations(aside / OPERATIONS, stored.record.operations, frames)
        about = {"step": stored.step, "code": [[*at, *snippet] for at, snippet in stored.code.items()]}
        about["operations"] = len(stored.record.operations)
        for what, arrays in (("values", stored.values), ("gradients", stored.gradients)):
            # Not `ascontiguousarray`, which gives a number an axis.
            kept = {str(k): np.asarray(a, order="C") for k, a in arrays.items() if a.dtype in KEPT_DTYPES}
            about[what] = len(kept)
            replace_file(aside / f"{what}.safetensors", save(kept))
        write_json(aside / RECORD, "pass", {**about, **_circumstances(stored.record, frames)})
        return _renamed(aside, folder / TRACES)
    except OSError as error:
        raise StoreError(
            f"The trace cannot be written to {folder}: {error.strerror or error}. Save it elsewhere."
        ) from None


def _renamed(aside: Path, traces: Path) -> Path:
    number = 1 + max([int(path.name) for path in traces.iterdir() if _NAME.fullmatch(path.name)], default=0)
    while True:
        target = traces / f"{number:06}"
        try:
            os.rename(aside, target)  # noqa: PTH104  Path.rename replaces an empty folder just as well, but says less
        except OSError:
            if not target.exists():
                raise
            number += 1
        else:
            sync_folder(traces)
            return target


def pass_folders(folder: Path) -> list[Path]:
    """The traces of a run, oldest first."""
    traces = folder / TRACES
    return sorted(path for path in traces.iterdir() if _NAME.fullmatch(path.name)) if traces.is_dir() else []


def passes_revision(folder: Path) -> int:
    """A number that changes when a trace was added to a run."""
    try:
        return (folder / TRACES).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def read_pass(folder: Path) -> StoredPass:
    """A trace read back."""
    head = read_head(folder)
    return StoredPass(head.record, _arrays(folder / VALUES), _arrays(folder / GRADIENTS), head.code, head.step)


def read_head(folder: Path) -> PassHead:
    """What is known of a trace but its tensors."""
    with _readable(folder), without_collection():
        plain = read_json(folder / RECORD, "pass")
        frames = [Frame(*frame) for frame in plain["frames"]]
        calls = tuple(_from_json(ModuleCallRecord, row, frames) for row in plain["calls"])
        old = isinstance(plain["operations"], list)
        paths = [call.path for call in calls]
        record = PassRecord(
            model=plain["model"],
            operations=tuple(_old_operation(row, frames) for row in plain["operations"])
            if old
            else read_operations(folder / OPERATIONS, frames, paths),
            calls=calls,
            parameters=tuple(_from_json(ParameterRecord, row, frames) for row in plain["parameters"]),
            modules=tuple((path, name) for path, name in plain["modules"]),
            elapsed_s=plain["elapsed_s"],
            seed=plain["seed"],
            failure=plain["failure"],
            stale=frozenset(plain["stale"]),
        )
        code = {(file, line): (first, tuple(lines)) for file, line, first, lines in plain.get("code", ())}
        return PassHead(record, code, plain.get("step"))


def read_outline(folder: Path) -> PassOutline:
    """What a list of traces says of one; little is read for it."""
    with _readable(folder):
        plain = {"step": None, **read_json(folder / RECORD, "pass")}
        if isinstance(plain["operations"], list):  # of an older version
            plain["operations"] = len(plain["operations"])
            plain |= {path.stem: len(tensor_shapes(path)) for path in (folder / VALUES, folder / GRADIENTS)}
        return PassOutline(**{name: plain[name] for name in PassOutline.__slots__})


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise damaged(Path(error.filename or folder / RECORD), "it is missing", "Save the trace again.") from None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(folder / RECORD, f"a key is missing or wrong ({error})", "Save the trace again.") from None


@contextmanager
def without_collection() -> Iterator[None]:
    """A block that makes many objects and no garbage: looking for some would take half of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def tensor_shapes(path: Path) -> dict[int, tuple[int, ...]]:
    """The operations of which a file of a trace holds a tensor, and its shape."""
    try:
        with path.open("rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return {int(key): tuple(about["shape"]) for key, about in head.items() if key != "__metadata__"}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise damaged(path, " ".join(str(error).split())) from None


def read_part(path: Path, operation: int, part: Part) -> npt.NDArray[Any]:
    """A part of one tensor of a trace; nothing else is read."""
    with _tensors(path) as file:
        whole = file.get_slice(str(operation))
        found: npt.NDArray[Any] = whole[part] if part else file.get_tensor(str(operation))
        return found


@contextmanager
def _tensors(path: Path) -> Iterator[Any]:  # Any: safetensors' own class has no types
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged(path, " ".join(str(error).split())) from None


def _arrays(path: Path) -> dict[int, npt.NDArray[Any]]:
    try:
        return {int(key): array for key, array in load_file(path).items()}
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged(path, " ".join(str(error).split())) from None


def to_json(record: PassRecord) -> dict[str, Any]:
    """The record as JSON; a line of code stands once, however often it was run."""
    frames: dict[Frame, int] = {}
    operations = [_row(operation, frames) for operation in record.operations]
    return {"operations": operations, **_circumstances(record, frames)}


def _row(item: Operation | ModuleCallRecord, frames: dict[Frame, int]) -> dict[str, Any]:
    return {**item._asdict(), "frames": [frames.setdefault(frame, len(frames)) for frame in item.frames]}


def _circumstances(record: PassRecord, frames: dict[Frame, int]) -> dict[str, Any]:
    """Everything but the operations; `frames` are the lines of code that these came through."""
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


def _from_json(kind: type[_Row], row: Mapping[str, Any], frames: Sequence[Frame]) -> _Row:
    """A named tuple of what JSON has; what a newer version added is left out, what an older one lacked is as usual."""
    fields = {name: row[name] for name in kind._fields if name in row or name not in kind._field_defaults}
    for name in _LISTS & fields.keys():
        fields[name] = tuple(fields[name])
    if "frames" in fields:
        fields["frames"] = tuple([frames[at] for at in fields["frames"]])
    return kind(**fields)


def _old_operation(row: Mapping[str, Any], frames: Sequence[Frame]) -> Operation:
    """An operation of a trace saved when operations were in `pass.json`."""
    made = {"role": Role(row["role"]), "parents": [Parent(*parent) for parent in row["parents"]]}
    return _from_json(Operation, {**row, **made}, frames)
