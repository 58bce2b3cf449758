"""Operations that repeat are one layer with several passes; layers get the names users look them up by.

Applications of the same parameters are one layer. So are operations without parameters that come from the same place in
the code, reached the same way (a loop), and those that follow the repeated layers of a body, however it was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from layerscope.operations import Operation, Role


@dataclass(frozen=True, slots=True)
class Naming:
    """The layer, pass and names of every operation."""

    layer: tuple[int, ...]  # of each operation
    number: tuple[int, ...]  # pass of each operation in its layer, from 1
    labels: tuple[str, ...]  # of each layer: "conv2d_3_7"
    members: tuple[tuple[int, ...], ...]  # operations of each layer

    def label(self, operation: int) -> str:
        """Name of one operation: its layer's, with the pass where there are several."""
        layer = self.layer[operation]
        passes = len(self.members[layer])
        return self.labels[layer] if passes == 1 else f"{self.labels[layer]}:{self.number[operation]}"


def name_layers(operations: Sequence[Operation], paths: Sequence[str]) -> Naming:
    """Layers and names; `paths` gives the module path of each operation."""
    groups = _Groups()
    for operation, path in zip(operations, paths, strict=True):
        groups.place(operation, path)
    kinds: Counter[str] = Counter()
    labels = []
    for total, members in enumerate(groups.members):
        kind = operations[members[0]].function.replace("_", "").lower()
        kinds[kind] += 1
        labels.append(f"{kind}_{kinds[kind]}_{total}")
    return Naming(tuple(groups.layer), tuple(groups.number), tuple(labels), tuple(map(tuple, groups.members)))


class _Groups:
    def __init__(self) -> None:
        self.layer: list[int] = []
        self.number: list[int] = []
        self.members: list[list[int]] = []
        self._by_place: dict[object, int] = {}
        self._by_body: dict[object, int] = {}
        self._last_parents: dict[int, tuple[int, ...]] = {}

    def place(self, operation: Operation, path: str) -> None:
        what = (operation.function, operation.position)
        layer = None
        body: object = None
        if operation.role is Role.OPERATION:
            place = (what, operation.parameters or (operation.site, path))
            parents = tuple(parent.operation for parent in operation.parents)
            body = (what, path, tuple(operation.arguments.items()), tuple(self.layer[p] for p in parents))
            layer = self._by_place.get(place)
            if layer is None and not operation.parameters:
                layer = self._same_body(body, parents)
            if layer is None:
                layer = len(self.members)
                self.members.append([])
            self._by_place.setdefault(place, layer)
            self._by_body.setdefault(body, layer)
            self._last_parents[layer] = tuple(self.number[p] for p in parents)
        else:
            layer = len(self.members)
            self.members.append([])
        self.members[layer].append(operation.index)
        self.layer.append(layer)
        self.number.append(len(self.members[layer]))

    def _same_body(self, body: object, parents: tuple[int, ...]) -> int | None:
        """The layer that followed the same layers in an earlier pass of them."""
        layer = self._by_body.get(body)
        passes = tuple(self.number[p] for p in parents)
        return layer if layer is not None and parents and passes != self._last_parents[layer] else None
