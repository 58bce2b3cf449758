"""The stack of module calls in progress, and the numbers that make a call's site: `block#2`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

from layerscope.model.records import call_site


class ModuleCall:
    """One call of a module."""

    __slots__ = ("module", "number", "parent", "path", "site")

    def __init__(self, module: Any, path: str, number: int, parent: ModuleCall | None) -> None:  # Any: a module
        self.module = module
        self.path = path
        self.number = number  # 1 for the first call of the module
        self.parent = parent
        self.site = call_site(path, number)


C = TypeVar("C", bound=ModuleCall)


class CallStack(Generic[C]):
    """The calls in progress on one thread, and how often each module was called."""

    __slots__ = ("_counts", "current", "outermost")

    def __init__(self) -> None:
        self.current: C | None = None
        self.outermost: C | None = None
        self._counts: dict[Hashable, int] = {}

    def count(self, what: Hashable) -> int:
        """Number of the next call of a module, or of what else is counted by itself."""
        number = self._counts[what] = self._counts.get(what, 0) + 1
        return number

    def enter(self, call: C) -> None:
        """A call begins inside the current one."""
        if self.current is None:
            self.outermost = call
        self.current = call

    def leave(self) -> C:
        """The current call ends."""
        call = self.current
        assert call is not None
        self.current = call.parent  # type: ignore[assignment]  # of the same class as the call itself
        if self.current is None:
            self.outermost = None
        return call

    def start_over(self) -> None:
        """Number calls from 1 again."""
        self._counts.clear()

    def __iter__(self) -> Iterator[C]:
        """The calls in progress, the innermost first."""
        call = self.current
        while call is not None:
            yield call
            call = call.parent  # type: ignore[assignment]
