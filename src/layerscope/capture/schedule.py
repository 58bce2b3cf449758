"""Which steps are recorded."""

from __future__ import annotations

from dataclasses import dataclass

from layerscope.errors import StateError


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every n-th step from `start` on, up to and without `stop`.

    >>> [step for step in range(10) if Schedule(every=3, start=2).wants(step)]
    [2, 5, 8]
    """

    every: int = 10
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "start", "stop"):
            value = getattr(self, name)
            if not isinstance(value, int) and not (name == "stop" and value is None):
                raise StateError(f"{name}={value!r} is not a whole number of steps.")
        if self.every < 1:
            raise StateError(f"every={self.every} records no step. Give 1 for every step, 10 for every tenth.")
        if self.stop is not None and self.stop <= self.start:
            raise StateError(f"stop={self.stop} is not after start={self.start}: no step would be recorded.")

    def wants(self, step: int) -> bool:
        """Whether the step is recorded."""
        return step >= self.start and (self.stop is None or step < self.stop) and (step - self.start) % self.every == 0
