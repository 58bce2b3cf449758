"""Which steps are recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from layerscope.errors import StateError


@dataclass(frozen=True)
class Schedule:
    """Every n-th step from `start` on, up to and without `stop`; and the `steps` listed; and those the `rule` picks.

    `back_off` stretches the distance from one recorded step to the next by that factor, so that a long training has
    many recorded steps at its beginning and few at its end. `every` is 10 if nothing else is said. `evaluation` is how
    many forwards of an evaluation are recorded; with 0 evaluations between recorded steps are not.

    >>> [step for step in range(10) if Schedule(every=3, start=2).wants(step)]
    [2, 5, 8]
    >>> [step for step in range(100) if Schedule(every=1, back_off=2).wants(step)]
    [0, 1, 3, 7, 15, 31, 63]
    >>> [step for step in range(100) if Schedule(every=50, steps=[1, 2]).wants(step)]
    [0, 1, 2, 50]
    """

    every: int | None = None
    start: int = 0
    stop: int | None = None
    back_off: float = 1.0
    steps: Iterable[int] = ()
    rule: Callable[[int], bool] | None = None
    evaluation: int = 16
    _listed: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            listed = frozenset(self.steps)
        except TypeError:
            raise StateError(f"steps={self.steps!r} is no list of steps.") from None
        object.__setattr__(self, "_listed", listed)
        if self.every is None and not listed and self.rule is None:
            object.__setattr__(self, "every", 10)
        self._check_types()
        if self.every is not None and self.every < 1:
            raise StateError(f"every={self.every} records no step. Give 1 for every step, 10 for every tenth.")
        if self.stop is not None and self.stop <= self.start:
            raise StateError(f"stop={self.stop} is not after start={self.start}: no step would be recorded.")
        if not self.back_off >= 1:
            raise StateError(f"back_off={self.back_off} is below 1. Give 1 for a steady distance, 2 to double it.")
        if self.evaluation < 0:
            raise StateError(f"evaluation={self.evaluation} is no number of forwards. Give 0 or more.")

    def _check_types(self) -> None:
        numbers = {name: getattr(self, name) for name in ("every", "start", "stop", "evaluation")}
        numbers |= {"steps": next((step for step in self._listed if not isinstance(step, int)), None)}
        for name, value in numbers.items():
            if not isinstance(value, int) and (value is not None or name in ("start", "evaluation")):
                what = "forwards" if name == "evaluation" else "steps"
                raise StateError(f"{name}={value!r} is not a whole number of {what}.")
        if self.rule is not None and not callable(self.rule):
            raise StateError(f"rule={self.rule!r} cannot be called: give a function of the step's number.")

    def wants(self, step: int) -> bool:
        """Whether the step is recorded."""
        if self.picks(step):
            return True
        return self.every is not None and self.covers(step) and _is_due(step - self.start, self.every, self.back_off)

    def picks(self, step: int) -> bool:
        """Whether the step itself is meant, by the list or by the rule."""
        return step in self._listed or (self.rule is not None and self.rule(step))

    def covers(self, step: int) -> bool:
        """Whether the step lies where every n-th is recorded."""
        return self.every is not None and step >= self.start and (self.stop is None or step < self.stop)


def _is_due(offset: int, every: int, back_off: float) -> bool:
    """Whether the k-th recorded step, for some k, is this many steps after the first."""
    if back_off == 1:
        return offset % every == 0
    # The distances every · back_off^k add up to every · (back_off^k − 1) / (back_off − 1).
    k = round(math.log(offset * (back_off - 1) / every + 1, back_off))
    return any(int(every * (back_off**near - 1) / (back_off - 1)) == offset for near in (k - 1, k, k + 1) if near >= 0)
