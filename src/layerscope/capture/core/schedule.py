"""Which steps are recorded and kept: schedule, step types, budget, and rules that decide when the step is over."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from layerscope.errors import ArgumentError, LayerscopeWarning, SelectError
from layerscope.model.records import STEP_TYPE


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
            raise ArgumentError(f"steps={self.steps!r} is no list of steps.") from None
        object.__setattr__(self, "_listed", listed)
        if self.every is None and not listed and self.rule is None:
            object.__setattr__(self, "every", 10)
        self._check_types()
        if self.every is not None and self.every < 1:
            raise ArgumentError(f"every={self.every} records no step. Give 1 for every step, 10 for every tenth.")
        if self.stop is not None and self.stop <= self.start:
            raise ArgumentError(f"stop={self.stop} is not after start={self.start}: no step would be recorded.")
        if not self.back_off >= 1:
            raise ArgumentError(f"back_off={self.back_off} is below 1. Give 1 for a steady distance, 2 to double it.")
        if self.evaluation < 0:
            raise ArgumentError(f"evaluation={self.evaluation} is no number of forwards. Give 0 or more.")

    def _check_types(self) -> None:
        numbers = {name: getattr(self, name) for name in ("every", "start", "stop", "evaluation")}
        numbers |= {"steps": next((step for step in self._listed if not isinstance(step, int)), None)}
        for name, value in numbers.items():
            if not isinstance(value, int) and (value is not None or name in ("start", "evaluation")):
                what = "forwards" if name == "evaluation" else "steps"
                raise ArgumentError(f"{name}={value!r} is not a whole number of {what}.")
        if self.rule is not None and not callable(self.rule):
            raise ArgumentError(f"rule={self.rule!r} cannot be called: give a function of the step's number.")

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


Every = int | Schedule | Mapping[str, int | Schedule]


class Cadence:
    """One schedule for all steps, or one for each type of step, by glob: the first that matches counts.

    A step without a type follows the schedule's own numbers. A step with a type is recorded when enough steps have gone
    by since the last recorded one of its type: a rare type is recorded whenever it comes.
    """

    def __init__(self, every: Every) -> None:
        if not isinstance(every, (int, Schedule, Mapping)):
            raise ArgumentError(
                f"every={every!r} is no number of steps, no Schedule, and no dict of them by step type."
            )
        several = every if isinstance(every, Mapping) else {"*": every}
        self._schedules = {
            glob: given if isinstance(given, Schedule) else Schedule(every=given) for glob, given in several.items()
        }
        self.evaluation = max((schedule.evaluation for schedule in self._schedules.values()), default=0)
        self._of_type: dict[str, Schedule | None] = {}  # as far as they were asked for
        # Of each type its last recorded step, and the distance to the next.
        self._last: dict[str, tuple[int, float]] = {}

    def wants(self, step: int, type: str | None = None) -> bool:
        """Whether the step is recorded; one that was given no type, not even a usual one, has None."""
        schedule = self._of(STEP_TYPE if type is None else type)
        if schedule is None:
            return False
        if type is None:
            return schedule.wants(step)
        last, distance = self._last.get(type, (None, 0.0))
        return schedule.picks(step) or (schedule.covers(step) and (last is None or step - last >= int(distance)))

    def note(self, step: int, type: str) -> None:
        """A step of the type was recorded."""
        schedule = self._of(type)
        if schedule is not None and schedule.every is not None:
            _, distance = self._last.get(type, (0, schedule.every / schedule.back_off))
            self._last[type] = step, distance * schedule.back_off

    def _of(self, type: str) -> Schedule | None:
        if type not in self._of_type:
            matching = (found for glob, found in self._schedules.items() if fnmatchcase(type, glob))
            self._of_type[type] = next(matching, None)
        return self._of_type[type]


class Budget:
    """Keeps account of all steps and of what recording took of them.

    `share` is the part of the whole time that recording may take: 0.02 for 2 %. None: as much as it takes.
    """

    def __init__(self, share: float | None = None) -> None:
        if share is not None and not 0 < share < 1:
            raise ArgumentError(f"budget={share} is no share of the time. Give a number between 0 and 1: 0.02 for 2 %.")
        self._allowed = share
        self._total_s = 0.0
        self._spent_s = 0.0
        self._last_s = 0.0

    def account(self, step_s: float, recording_s: float, *, recorded: bool) -> None:
        """Take in what a step took, and what of it was ours."""
        self._total_s += step_s
        self._spent_s += recording_s
        if recorded:
            self._last_s = recording_s

    def affords(self) -> bool:
        """Whether one more recorded step, at the price of the last, stays within the share; the first always does."""
        if self._allowed is None or not self._last_s:
            return True
        return self._spent_s + self._last_s <= self._allowed * (self._total_s + self._last_s)

    @property
    def share(self) -> float:
        """The part of the time that recording has taken so far."""
        return self._spent_s / self._total_s if self._total_s else 0.0


_DECAY = 0.98  # of the running mean: some fifty steps
_EMA = "_ema"


class StepFacts:
    """A step that has just ended: `step`, its metrics by name, and `loss_ema`, the running mean of `loss` before it."""

    def __init__(self, step: int, metrics: Mapping[str, float], means: Mapping[str, float]) -> None:
        self.step = step
        self._known = dict(metrics) | {f"{name}{_EMA}": means.get(name, value) for name, value in metrics.items()}

    def __getattr__(self, name: str) -> float:
        try:
            return self._known[name]
        except KeyError:
            names = ", ".join(self._known) or "none, for step() was given no metric"
            raise SelectError(f"keep_if asks for {name!r}, which the step does not have. It has: {names}.") from None


KeepIf = Callable[[StepFacts], bool]


class Keeping:
    """Asks the user's rule whether a step is kept, and remembers the running means it may want."""

    def __init__(self, rule: KeepIf | None = None) -> None:
        if rule is not None and not callable(rule):
            raise ArgumentError(
                f"keep_if={rule!r} cannot be called: give a function of the step, such as lambda s: s.loss > 9."
            )
        self._rule = rule
        self._warned = False
        self._means: dict[str, float] = {}

    @property
    def is_late(self) -> bool:
        """Whether there is a rule, so that any step may be kept."""
        return self._rule is not None

    def keeps(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether the rule wants the step; called for every step, in order."""
        if self._rule is None:
            return False
        facts = StepFacts(step, metrics, self._means)
        for name, value in metrics.items():
            if abs(value) < float("inf"):  # neither NaN nor Inf, which a mean would never forget
                before = self._means.get(name, value)
                self._means[name] = _DECAY * before + (1 - _DECAY) * value
        try:
            return bool(self._rule(facts))
        except Exception as error:  # noqa: BLE001  the user's rule must not end the user's training
            if not self._warned:
                self._warned = True
                text = f"keep_if failed at step {step} ({type(error).__name__}: {error}). Such steps are not kept."
                warnings.warn(text, LayerscopeWarning, stacklevel=4)
            return False


@dataclass(slots=True)
class Late:
    """What the user decided when the step was known."""

    reason: str
    before: int
    samples: tuple[int, ...] | None = None
    categories: tuple[str, ...] = ()  # of the chosen samples


class Balance:
    """How many samples of each category were kept so far: those of rare ones are chosen first."""

    def __init__(self) -> None:
        self._kept: Counter[str] = Counter()

    def choose(self, categories: Sequence[str], most: int) -> tuple[int, ...]:
        """Places of the samples to keep."""
        counts, waiting = Counter(self._kept), list(range(len(categories)))
        chosen: list[int] = []
        while waiting and len(chosen) < most:
            place = min(waiting, key=lambda place: counts[categories[place]])
            counts[categories[place]] += 1
            waiting.remove(place)
            chosen.append(place)
        return tuple(sorted(chosen))

    def note(self, categories: Iterable[str]) -> None:
        """Samples of these categories were kept."""
        self._kept.update(categories)
