"""Keys → operations: labels, passes, modules, ordinals, substrings and globs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from layerscope.errors import SelectError
from layerscope.graph.layers import Naming
from layerscope.model.patterns import nearest
from layerscope.model.trace_record import Operation, TraceRecord

Key = str | int
Selector = Key | Callable[[Operation], bool]


class Lookup:
    """Finds operations of one trace by any of their names."""

    def __init__(self, record: TraceRecord, naming: Naming) -> None:
        self._record = record
        self._naming = naming
        self._by_name: dict[str, tuple[int, ...]] = {}
        for layer, members in enumerate(naming.members):
            label = naming.labels[layer]
            for name in (label, label.rpartition("_")[0]):
                self._by_name[name] = members
                for number, member in enumerate(members, start=1):
                    self._by_name[f"{name}:{number}"] = (member,)
        self._by_module = self._modules()

    def _modules(self) -> dict[str, tuple[int, ...]]:
        """The outputs of each module: those of its last call, and of each call by its number."""
        outputs: dict[str, tuple[int, ...]] = {}
        for call in self._record.calls:
            if call.outputs and call.path:
                outputs[call.path] = outputs[f"{call.path}:{call.number}"] = call.outputs
        return outputs

    def one(self, key: Key) -> tuple[int, ...]:
        """The operation a key names, or all passes of the layer it names; an exact name beats a substring."""
        if isinstance(key, int):
            return (self._ordinal(key),)
        if key in self._by_name:
            return self._by_name[key]
        if key in self._by_module:
            return self._by_module[key][-1:]
        matches = self.many([key])
        layers = dict.fromkeys(self._naming.layer[match] for match in matches)
        if len(layers) == 1:
            return self._naming.members[next(iter(layers))]
        labels = [self._naming.labels[layer] for layer in layers]
        shown = ", ".join(labels[:8]) + (" …" if len(labels) > 8 else "")
        raise SelectError(f"{key!r} matches {len(labels)} operations: {shown}. Give one of them, or use find({key!r}).")

    def many(self, selectors: Iterable[Selector]) -> list[int]:
        """Operations that any of the selectors names, in order; each selector must name some."""
        operations: set[int] = set()
        for selector in selectors:
            operations.update(self._selected(selector))
        return sorted(operations)

    def _selected(self, selector: Selector) -> Sequence[int]:
        if callable(selector):
            return [operation.index for operation in self._record.operations if selector(operation)]
        if isinstance(selector, int):
            return [self._ordinal(selector)]
        if selector in self._by_name:
            return self._by_name[selector]
        if selector in self._by_module:
            return self._by_module[selector]
        matches = self._matching(selector)
        if not matches:
            names = (*self._naming.labels, *self._by_module)
            raise SelectError(f"No operation or module is called {selector!r}. {nearest(selector, names)}")
        return matches

    def _matching(self, pattern: str) -> list[int]:
        glob = pattern if re.search(r"[*?\[]", pattern) else f"*{pattern}*"
        names = {name for name in (*self._naming.labels, *self._by_module) if fnmatchcase(name, glob)}
        by_label = [
            m
            for layer, members in enumerate(self._naming.members)
            if self._naming.labels[layer] in names
            for m in members
        ]
        return sorted(
            {*by_label, *(output for name in names if name in self._by_module for output in self._by_module[name])}
        )

    def _ordinal(self, position: int) -> int:
        count = len(self._record.operations)
        if not -count <= position < count:
            raise SelectError(
                f"There is no operation {position}: the pass has {count}, from 0 to {count - 1} (or -{count} to -1)."
            )
        return position % count

    def keys(self, operation: int) -> list[str]:
        """Every key of the operation."""
        layer = self._naming.layer[operation]
        label, passes = self._naming.labels[layer], len(self._naming.members[layer])
        number = self._naming.number[operation]
        names = [label] if passes == 1 else []
        modules = [name for name, outputs in self._by_module.items() if outputs[-1] == operation]
        return [str(operation - len(self._record.operations)), str(operation), *names, f"{label}:{number}", *modules]
