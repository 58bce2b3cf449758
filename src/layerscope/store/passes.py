"""Traces in a run folder: what a pass is as JSON, its operations as columns, values and gradients as safetensors."""

from __future__ import annotations

import gc
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from layerscope.errors import StoreError
from layerscope.operations import Frame, ModuleCallRecord, Operation, ParameterRecord, PassRecord
from layerscope.store.files import Directory, checksum_text, damaged, opened
from layerscope.store.manifests import read_json, unreadable, whole, write_json
from layerscope.store.pass_columns import operations_file, read_operations
from layerscope.store.pass_tensors import DTYPES, Arrays, StoredTensors, tensors_file

TRACES = "traces"
RECORD, OPERATIONS, VALUES, GRADIENTS = "pass.json", "operations.arrow", "values.safetensors", "gradients.safetensors"
_NAME = re.compile(r"[0-9]{6,9}")
KEPT_DTYPES = frozenset(DTYPES.values())
_LISTS = frozenset({"shape", "inputs", "outputs", "parents", "parameters", "buffers", "written"})
_Row = TypeVar("_Row", ModuleCallRecord, ParameterRecord)

Snippet = tuple[int, tuple[str, ...]]  # number of the first line, and the lines
Code = Mapping[tuple[str, int], Snippet]  # file and line → the lines around it


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
    """A stored trace without its tensors, and the checksums of their files."""

    record: PassRecord
    code: Code
    step: int | None
    checksums: Mapping[str, str]


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
        with opened(folder) as run:
            run.make(TRACES)
        with opened(folder, TRACES) as traces:
            aside = f".{secrets.token_hex(8)}"
            traces.make(aside)
            with opened(folder, TRACES, aside) as directory:
                _write_files(directory, stored)
            return folder / TRACES / _renamed(traces, aside)
    except OSError as error:
        raise StoreError(
            f"The trace cannot be written to {folder}: {error.strerror or error}. Save it elsewhere."
        ) from None


def _write_files(directory: Directory, stored: StoredPass) -> None:
    frames: dict[Frame, int] = {}
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
    write_json(directory, RECORD, "pass", {**about, **_circumstances(stored.record, frames)})


def _renamed(traces: Directory, aside: str) -> str:
    number = 1 + max(map(int, filter(_NAME.fullmatch, traces.folders())), default=0)
    while True:
        target = f"{number:06}"
        try:
            traces.rename(aside, target)
        except OSError:
            if target not in traces.folders():
                raise
            number += 1
        else:
            return target


def pass_folders(folder: Path) -> list[Path]:
    """The traces of a run, oldest first."""
    try:
        with opened(folder, TRACES) as traces:
            return sorted(folder / TRACES / name for name in traces.folders() if _NAME.fullmatch(name))
    except FileNotFoundError:
        return []


def passes_revision(folder: Path) -> int:
    """A number that changes when a trace was added to a run."""
    try:
        return (folder / TRACES).lstat().st_mtime_ns
    except FileNotFoundError:
        return 0


def pass_revision(folder: Path) -> int:
    """A number that is another one when a trace was deleted and another one saved in its place."""
    with _readable(folder) as directory:
        return directory.stat(RECORD).st_mtime_ns


def read_pass(folder: Path) -> StoredPass:
    """A trace read back."""
    head = read_head(folder)
    values, gradients = (tensors_of(folder, name, head).all() for name in (VALUES, GRADIENTS))
    return StoredPass(head.record, values, gradients, head.code, head.step)


def tensors_of(folder: Path, name: str, head: PassHead) -> StoredTensors:
    """The values or the gradients of a trace, to be read one by one."""
    return StoredTensors(folder, name, head.checksums[name])


def read_head(folder: Path) -> PassHead:
    """What is known of a trace but its tensors."""
    with _readable(folder) as directory, without_collection():
        plain = read_json(directory, RECORD, "pass")
        outline = _outline(plain)
        frames = [Frame(*frame) for frame in plain["frames"]]
        calls = tuple(_from_json(ModuleCallRecord, row, frames) for row in plain["calls"])
        checksums = {name: str(plain["checksums"][name]) for name in (OPERATIONS, VALUES, GRADIENTS)}
        paths = [call.path for call in calls]
        record = PassRecord(
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
        return PassHead(record, code, outline.step, checksums)


def read_outline(folder: Path) -> PassOutline:
    """What a list of traces says of one; little is read for it."""
    with _readable(folder) as directory:
        return _outline(read_json(directory, RECORD, "pass"))


def _outline(plain: Mapping[str, Any]) -> PassOutline:
    """What pass.json says of the whole pass, each value of the type that it must have."""
    elapsed_s, failure, step = float(plain["elapsed_s"]), plain["failure"], plain["step"]
    if not (math.isfinite(elapsed_s) and isinstance(plain["model"], str) and isinstance(failure, str | None)):
        raise ValueError("elapsed_s, model or failure")
    counts = {name: whole(plain[name]) for name in ("operations", "values", "gradients")}
    step = None if step is None else whole(step)
    return PassOutline(model=plain["model"], elapsed_s=elapsed_s, failure=failure, step=step, **counts)


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
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
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
