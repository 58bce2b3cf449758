"""Parameters and buffers: tensors that live outside the pass and have names.

An argument that is one of them is known by a number. When something writes to it, calls before and after the write read
different values: each write begins a new number for the same name.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from layerscope.capture.torch.trace.places import copy_of, storage_of


class External:
    """One named tensor, as it was between two writes."""

    __slots__ = ("is_used", "name", "since", "tensor", "value")

    def __init__(self, name: str, tensor: Tensor, since: int) -> None:
        self.name = name
        self.tensor = tensor  # held, so that its identity stays its own
        self.value: Tensor | None = tensor  # a copy once it was written, None where nothing is kept
        self.since = since  # nodes there were when it had this value
        self.is_used = False


class Externals:
    """The named tensors of a pass."""

    def __init__(self, *, keep: bool) -> None:
        self.all: list[External] = []
        self._keep = keep
        self.numbers: dict[int, int] = {}  # identity of a tensor → its current number
        self._at: dict[int, list[int]] = {}  # memory → numbers that calls have read

    def add(self, named: Iterable[tuple[str, Tensor]], since: int) -> None:
        """Give tensors names, unless they have one."""
        for name, tensor in named:
            if id(tensor) not in self.numbers:
                self.numbers[id(tensor)] = len(self.all)
                self.all.append(External(name, tensor, since))

    def number_of(self, tensor: Tensor) -> int:
        """The number of a named tensor, now."""
        number = self.numbers[id(tensor)]
        if not self.all[number].is_used:
            self.all[number].is_used = True
            self._at.setdefault(storage_of(tensor), []).append(number)
        return number

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor has a name."""
        return id(tensor) in self.numbers

    def sharing(self, tensor: Tensor) -> int | None:
        """The number of a named tensor in the same memory."""
        numbers = self._at.get(storage_of(tensor))
        return numbers[-1] if numbers else None

    def before_write(self, tensors: list[Tensor], since: int) -> None:
        """Copy the named tensors whose memory is about to be written, and give them new numbers."""
        for tensor in tensors:
            for number in self._at.pop(storage_of(tensor), ()):
                external = self.all[number]
                external.value = copy_of(external.tensor) if self._keep else None
                self.numbers[id(external.tensor)] = len(self.all)
                self.all.append(External(external.name, external.tensor, since))
