"""The tensors of a stored trace: safetensors, of which each tensor is verified when it is read."""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from layerscope.store.files import checksum, checksum_text, damaged, opened, read_range

Arrays = Mapping[int, npt.NDArray[Any]]  # Any: one of DTYPES; by operation
Part = tuple[int | slice, ...]  # one index or range for each axis
DTYPES = {  # what safetensors can keep of numpy's types, by the names it has for them
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    **{f"I{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    "BOOL": np.dtype(bool),
    "C64": np.dtype("<c8"),
}
MOST_HEAD = 64 << 20  # bytes of the description of the tensors; docs/format.md states it
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


def tensors_file(arrays: Arrays) -> tuple[bytes, str]:
    """A file of tensors with their checksums in its metadata, and the checksum of its head."""
    ordered = {number: np.asarray(arrays[number], order="C") for number in sorted(arrays)}
    sums = np.array([checksum(array.tobytes()) for array in ordered.values()], "<u8").tobytes()
    tensors = {str(number): array for number, array in ordered.items()}
    content = save(tensors, metadata={"checksums": base64.b64encode(sums).decode()})
    return content, checksum_text(content[: 8 + int.from_bytes(content[:8], "little")])


class StoredTensors:
    """The tensors in a file of a trace, by operation; only what is asked for is read."""

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
        except _UNREADABLE as error:
            raise damaged(self._folder / self._name, " ".join(str(error).split())) from None

    def read(self, operation: int, part: Part = ()) -> npt.NDArray[Any]:
        """A tensor, or a part of it."""
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
