"""Operations that repeat are one layer with several passes; layers get the names users look them up by.

Applications of the same parameters are one layer. So are operations without parameters that come from the same place in
a loop (`query/loops.py` says which do), and those that follow the repeated layers of a body, however it was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from layerscope.operations import Outline, Outlined, PassRecord, Role
from layerscope.query.loops import places


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


def name_layers(record: PassRecord) -> Naming:
    """Layers and names of the operations of a pass."""
    operations = record.operations
    groups = _Groups()
    outlines = [*(operations.outlines() if isinstance(operations, Outlined) else _outlines(record))]
    groups.place(outlines, places(outlines, dict(record.modules)))
    kinds: Counter[str] = Counter()
    labels = []
    for total, function in enumerate(groups.functions):
        kind = function.replace("_", "").lower()
        kinds[kind] += 1
        labels.append(f"{kind}_{kinds[kind]}_{total}")
    return Naming(tuple(groups.layer), tuple(groups.number), tuple(labels), tuple(map(tuple, groups.members)))


def _outlines(record: PassRecord) -> Iterable[Outline]:
    for op in record.operations:
        site = op.site if op.role is Role.OPERATION else None
        parents = tuple([parent.operation for parent in op.parents])
        path = record.calls[op.call].path
        yield op.function, op.position, op.parameters, site, path, tuple(op.arguments.items()), parents, op.buffers


class _Groups:
    def __init__(self) -> None:
        self.layer: list[int] = []
        self.number: list[int] = []
        self.members: list[list[int]] = []
        self.functions: list[str] = []  # of each layer
        self._by_place: dict[object, int] = {}
        self._by_body: dict[object, int] = {}
        self._last_parents: list[tuple[int, ...]] = []  # of each layer's last pass

    def place(self, outlines: Iterable[Outline], found_places: Iterable[object]) -> None:
        """Give every operation its layer and pass."""
        layers, numbers, members, layer_of = self.layer, self.number, self.members, self.layer.__getitem__
        for index, (outline, place) in enumerate(zip(outlines, found_places, strict=True)):
            function, position, parameters, site, path, arguments, parents, _ = outline
            if site is None:
                layer = self._new(function)
            else:
                body = (function, position, path, arguments, *map(layer_of, parents))
                found = self._by_place.get(place)
                if found is None:
                    found = self._same_body(body, parents) if parents and not parameters else None
                    found = self._by_place[place] = self._new(function) if found is None else found
                layer = found
                self._by_body.setdefault(body, layer)
                self._last_parents[layer] = parents
            layers.append(layer)
            members[layer].append(index)
            numbers.append(len(members[layer]))

    def _new(self, function: str) -> int:
        self.functions.append(function)
        self.members.append([])
        self._last_parents.append(())
        return len(self.members) - 1

    def _same_body(self, body: object, parents: tuple[int, ...]) -> int | None:
        """The layer that followed the same layers in an earlier pass of them."""
        layer = self._by_body.get(body)
        if layer is None:
            return None
        passes, last = ([self.number[p] for p in each] for each in (parents, self._last_parents[layer]))
        return layer if passes != last else None
