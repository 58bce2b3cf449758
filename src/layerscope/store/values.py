"""Whole tensors on disk: one safetensors file for each rank, session and step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from layerscope.records import Series, Value
from layerscope.store.batches import series_row
from layerscope.store.format import VALUES, VERSION, ValuesName, check_version, damaged, replace_file

#: What safetensors can keep of numpy's types.
KEPT_DTYPES = frozenset(
    np.dtype(name)
    for name in [
        "float64",
        "float32",
        "float16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint16",
        "uint8",
        "bool",
        "complex64",
    ]
)


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A whole tensor read back, and who wrote it."""

    rank: int
    session: int
    step: int
    series: int
    array: npt.NDArray[Any]  # as it was recorded


class ValuesWriter:
    """Writes the values of one recorder."""

    def __init__(self, folder: Path, rank: int, session: int) -> None:
        self._folder = folder / VALUES
        self._names = (rank, session)

    def write(self, values: Sequence[Value], known: Mapping[int, Series]) -> None:
        """Writes values as one file per step, or several where a series comes twice."""
        files: list[tuple[int, dict[int, Value]]] = []
        for value in values:
            fitting = next((file for step, file in files if step == value.step and value.series not in file), None)
            if fitting is None:
                files.append((value.step, {value.series: value}))
            else:
                fitting[value.series] = value
        for step, file in files:
            self._write_file(step, file, known)

    def _write_file(self, step: int, values: Mapping[int, Value], known: Mapping[int, Series]) -> None:
        rank, session = self._names
        about: dict[str, object] = {"version": VERSION, "rank": rank, "session": session, "step": step}
        metadata = {"format": "layerscope-values", **{key: str(value) for key, value in about.items()}}
        for number in values:
            metadata[str(number)] = json.dumps(series_row(known[number]))
        arrays = {str(number): np.ascontiguousarray(value.array) for number, value in values.items()}
        path = self._folder / str(ValuesName(rank, session, step, 0))
        number = 0
        while path.exists():
            number += 1
            path = self._folder / str(ValuesName(rank, session, step, number))
        replace_file(path, save(arrays, metadata))


def values_names(folder: Path) -> list[ValuesName]:
    """The files of values of a run, in the order of rank, session and step."""
    try:
        with os.scandir(folder / VALUES) as entries:
            names = [ValuesName.parse(entry.name) for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name is not None)


def read_values(folder: Path, step: int, *, history: bool = False) -> list[KeptValue]:
    """The values of one step; of those of several sessions the latest, unless history is wanted."""
    found = [value for name in values_names(folder) if name.step == step for value in _read_file(folder / VALUES, name)]
    if history:
        return found
    latest = {(value.rank, value.series): value.session for value in found}  # names ascend by session
    return [value for value in found if latest[value.rank, value.series] == value.session]


def _read_file(folder: Path, name: ValuesName) -> list[KeptValue]:
    path = folder / str(name)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != "layerscope-values":
                raise damaged(path, "it is no file of values of a run")
            check_version(path, int(metadata["version"]) if metadata.get("version", "").isdigit() else None)
            keys = sorted(int(key) for key in file.keys())  # noqa: SIM118 -- the file is not iterable
            return [KeptValue(name.rank, name.session, name.step, key, file.get_tensor(str(key))) for key in keys]
    except (SafetensorError, OSError, ValueError) as error:
        raise damaged(path, " ".join(str(error).split())) from None
