"""Parameters and buffers: tensors that live outside the pass and have names.

An argument that is one of them is known by a number. When something writes to it, calls before and after the write read
different values: each write begins a new number for the same name.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from layerscope.capture.torch.trace.memory import version_of
from layerscope.capture.torch.trace.places import copy_of, overlap, place_of, storage_of


class External:
    """One named tensor, as it was between two writes."""

    __slots__ = ("is_used", "name", "since", "tensor", "value", "version")

    def __init__(self, name: str, tensor: Tensor, since: int) -> None:
        self.name = name
        self.tensor = tensor  # held, so that its identity stays its own
        self.value: Tensor | None = tensor  # a copy once it was written, None where nothing is kept
        self.since = since  # nodes there were when it had this value
        self.is_used = False
        self.version = 0  # of the tensor, when a call used it first

    @property
    def is_changed(self) -> bool:
        """Whether something unseen has written to it since, such as an optimizer after the pass."""
        return self.value is self.tensor and version_of(self.tensor) != self.version


class Externals:
    """The named tensors of a pass."""

    def __init__(self, *, keep: bool) -> None:
        self.all: list[External] = []
        self._keep = keep
        self.numbers: dict[int, int] = {}  # identity of a tensor → its current number
        self.written: dict[int, tuple[str, ...]] = {}  # first node of a call → the names of what it wrote
        self._at: dict[int, list[int]] = {}  # memory → numbers that calls have read
        self._changing: dict[int, dict[str, Tensor]] = {}  # memory that is written → the named tensors in it

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
            self.all[number].version = version_of(tensor)
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
            memory = storage_of(tensor)
            for number in self._at.pop(memory, ()):
                external = self.all[number]
                self._changing.setdefault(memory, {})[external.name] = external.tensor
                external.value = copy_of(external.tensor) if self._keep else None
                self.numbers[id(external.tensor)] = len(self.all)
                self.all.append(External(external.name, external.tensor, since))

    def after_write(self, lead: int, tensors: list[Tensor]) -> None:
        """Note which named tensors a call has written."""
        if not self._changing:
            return
        names: dict[str, None] = {}
        for tensor in tensors:
            if (number := self.numbers.get(id(tensor))) is not None:
                names[self.all[number].name] = None
            if (others := self._changing.get(storage_of(tensor))) is not None:
                names.update({name: None for name, other in others.items() if _may_share(tensor, other)})
        if names:
            self.written[lead] = tuple(names)


def _may_share(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors, once in the same memory, may have bytes in common."""
    if one is other:
        return True
    if storage_of(one) != storage_of(other):
        return False  # the named one was moved
    place, other_place = place_of(one), place_of(other)
    return place is None or other_place is None or overlap(place, other_place)
