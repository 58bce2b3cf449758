"""Traces in a run folder: the record of a pass as JSON, its values and gradients as safetensors."""

from __future__ import annotations

import gc
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from layerscope.errors import StoreError
from layerscope.operations import Frame, ModuleCallRecord, Operation, ParameterRecord, Parent, PassRecord, Role
from layerscope.store.format import damaged, read_json, replace_file, sync_folder, write_json
from layerscope.store.values import KEPT_DTYPES

TRACES = "traces"
RECORD, VALUES, GRADIENTS = "pass.json", "values.safetensors", "gradients.safetensors"
_NAME = re.compile(r"\d{6,}")

_KNOWN = frozenset((*Operation._fields, *ModuleCallRecord._fields))
_LISTS = frozenset({"parents", "parameters", "buffers", "shape", "written", "inputs", "outputs"})

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


def write_pass(folder: Path, stored: StoredPass) -> Path:
    """Write a trace into a run folder, beside those already there; it appears as a whole."""
    try:
        (folder / TRACES).mkdir(exist_ok=True)
        aside = folder / TRACES / f".{secrets.token_hex(8)}"
        aside.mkdir()
        about = {"step": stored.step, "code": [[*at, *snippet] for at, snippet in stored.code.items()]}
        write_json(aside / RECORD, "pass", {**to_json(stored.record), **about})
        for name, arrays in ((VALUES, stored.values), (GRADIENTS, stored.gradients)):
            kept = {str(k): np.ascontiguousarray(a) for k, a in arrays.items() if a.dtype in KEPT_DTYPES}
            replace_file(aside / name, save(kept))
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
    try:
        with without_collection():
            plain = read_json(folder / RECORD, "pass")
            code = {(file, line): (first, tuple(lines)) for file, line, first, lines in plain.get("code", ())}
            return PassHead(from_json(plain), code, plain.get("step"))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(folder / RECORD, f"a key is missing or wrong ({error})") from None


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
    with _tensors(path) as file:
        return {int(key): tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118


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

    def row(item: Operation | ModuleCallRecord) -> dict[str, Any]:
        return {**item._asdict(), "frames": [frames.setdefault(frame, len(frames)) for frame in item.frames]}

    operations = [row(operation) for operation in record.operations]
    calls = [row(call) for call in record.calls]
    return {
        "model": record.model,
        "operations": operations,
        "calls": calls,
        "parameters": [parameter._asdict() for parameter in record.parameters],
        "modules": record.modules,
        "elapsed_s": record.elapsed_s,
        "seed": record.seed,
        "failure": record.failure,
        "stale": sorted(record.stale),
        "frames": list(frames),
    }


def from_json(plain: Mapping[str, Any]) -> PassRecord:
    """The record that `to_json` wrote; takes what it is given apart."""
    frames = [Frame(*frame) for frame in plain["frames"]]

    def rest(row: dict[str, Any]) -> dict[str, Any]:
        """The row with tuples, in place: there are tens of thousands."""
        for name in _LISTS & row.keys():
            row[name] = tuple(row[name])
        row["frames"] = tuple([frames[at] for at in row["frames"]])
        for name in row.keys() - _KNOWN:
            del row[name]  # of a newer version
        return row

    roles = {role.value: role for role in Role}
    operations = []
    for row in plain["operations"]:
        row["role"] = roles[row["role"]]
        row["parents"] = [Parent(*parent) for parent in row["parents"]]
        operations.append(Operation(**rest(row)))
    parameters = [ParameterRecord(**{**row, "shape": tuple(row["shape"])}) for row in plain["parameters"]]
    return PassRecord(
        model=plain["model"],
        operations=tuple(operations),
        calls=tuple(ModuleCallRecord(**rest(row)) for row in plain["calls"]),
        parameters=tuple(parameters),
        modules=tuple((path, name) for path, name in plain["modules"]),
        elapsed_s=plain["elapsed_s"],
        seed=plain["seed"],
        failure=plain["failure"],
        stale=frozenset(plain["stale"]),
    )
