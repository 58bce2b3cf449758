"""When steps are recorded: schedule, step types, budget, and rules that decide when the step is over."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from fnmatch import fnmatchcase

from layerscope.errors import ArgumentError, LayerscopeWarning, SelectError
from layerscope.model.records import STEP_TYPE

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
            names = ", ".join(self._known) or "none, because step() was given no metric"
            raise SelectError(f"keep_if asks for {name!r}, which the step does not have. It has: {names}.") from None


KeepIf = Callable[[StepFacts], bool]


@dataclass(frozen=True)
class Schedule:
    """When steps are recorded, for `watch(every=Schedule(…))`.

    Which steps: every n-th from `start` on, before `stop`; those listed in `steps`; and those for which
    `rule(step_number)` is true. `every` is 10 unless `steps` or `rule` is given. `back_off` multiplies the distance
    after each recorded step, so that a long training has many recorded steps at its beginning and few at its end.
    `every` may also be a dict from step types (globs of what `begin(type=…)` gives) to numbers or schedules.

    Steps kept after they ended: `keep_if` is a function that decides at the end of any other step whether to keep it,
    `keep_if=lambda step: step.loss > 3 * step.loss_ema`. `keep_last` is how many ended steps stay in memory, so that
    `Recorder.keep()` and `keep_if` can keep them too.

    How much: `budget=0.02` skips steps so that recording takes at most 2 % of the time. `evaluation` is how many
    forwards of an evaluation are recorded; 0 records none between recorded steps.

    >>> [step for step in range(10) if Schedule(every=3, start=2).wants(step)]
    [2, 5, 8]
    >>> [step for step in range(100) if Schedule(every=1, back_off=2).wants(step)]
    [0, 1, 3, 7, 15, 31, 63]
    >>> [step for step in range(100) if Schedule(every=50, steps=[1, 2]).wants(step)]
    [0, 1, 2, 50]
    """

    every: int | Mapping[str, int | Schedule] | None = None
    _: KW_ONLY
    start: int = 0
    stop: int | None = None
    steps: Iterable[int] = ()
    rule: Callable[[int], bool] | None = None
    back_off: float = 1.0
    keep_if: KeepIf | None = None
    keep_last: int = 0
    budget: float | None = None
    evaluation: int = 16
    _listed: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "steps", tuple(self.steps))
            object.__setattr__(self, "_listed", frozenset(self.steps))
        except TypeError:
            raise ArgumentError(f"steps={self.steps!r} is not a list of steps.") from None
        if self.every is None and not self._listed and self.rule is None:
            object.__setattr__(self, "every", 10)
        self._check_types()
        if isinstance(self.every, Mapping):
            self._check_step_types(self.every)
        elif self.every is not None and self.every < 1:
            raise ArgumentError(f"every={self.every} records no step. Give 1 for every step, 10 for every tenth.")
        if self.stop is not None and self.stop <= self.start:
            raise ArgumentError(f"stop={self.stop} is not after start={self.start}: no step would be recorded.")
        if not self.back_off >= 1:
            raise ArgumentError(f"back_off={self.back_off} is below 1. Give 1 for a steady distance, 2 to double it.")
        if self.budget is not None and not 0 < self.budget < 1:
            raise ArgumentError(f"budget={self.budget} is not a share of the time. Give 0.02 for 2 %.")

    def _check_types(self) -> None:
        numbers = {name: getattr(self, name) for name in ("start", "stop", "keep_last", "evaluation")}
        numbers |= {"steps": next((step for step in self._listed if not isinstance(step, int)), None)}
        numbers |= {} if isinstance(self.every, Mapping) else {"every": self.every}
        for name, value in numbers.items():
            what = "forwards" if name == "evaluation" else "steps"
            if not isinstance(value, int) and (value is not None or name in ("start", "keep_last", "evaluation")):
                raise ArgumentError(f"{name}={value!r} is not a whole number of {what}.")
            if value is not None and value < 0 and name in ("keep_last", "evaluation"):
                raise ArgumentError(f"{name}={value!r} is not a number of {what}. Give 0 or more.")
        for name, example in (("rule", "lambda step: step < 5"), ("keep_if", "lambda step: step.loss > 9")):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ArgumentError(f"{name}={getattr(self, name)!r} cannot be called: give a function, as {example}.")

    def _check_step_types(self, every: Mapping[str, int | Schedule]) -> None:
        """Refuse what does not belong to all types together, and in their schedules what belongs to the whole run."""
        for name in self._given("start", "stop", "steps", "rule", "back_off"):
            raise ArgumentError(f"{name} differs by step type: give it to the schedules in the dict `every`.")
        for given in every.values():
            schedule = schedule_of(given)
            for name in schedule._given("keep_if", "keep_last", "budget", "evaluation"):
                raise ArgumentError(f"{name} is for all step types: Schedule(every={{…}}, {name}=…).")
            if isinstance(schedule.every, Mapping):
                raise ArgumentError(f"every={self.every!r} has a dict inside a dict. Give a number or a Schedule.")

    def _given(self, *names: str) -> list[str]:
        usual = {each.name: each.default for each in fields(self)}
        return [name for name in names if getattr(self, name) != usual[name]]

    def of_type(self, type: str) -> Schedule | None:
        """The schedule for steps of a type; None if none are recorded."""
        if not isinstance(self.every, Mapping):
            return self
        return next((schedule_of(every) for glob, every in self.every.items() if fnmatchcase(type, glob)), None)

    def wants(self, step: int) -> bool:
        """Whether the step is recorded."""
        every = self.every
        due = isinstance(every, int) and self.covers(step) and _is_due(step - self.start, every, self.back_off)
        return due or self.picks(step)

    def picks(self, step: int) -> bool:
        """Whether the list or the rule names the step."""
        return step in self._listed or (self.rule is not None and self.rule(step))

    def covers(self, step: int) -> bool:
        """Whether every n-th step is recorded around this step."""
        return self.every is not None and step >= self.start and (self.stop is None or step < self.stop)


def _is_due(offset: int, every: int, back_off: float) -> bool:
    """Whether the k-th recorded step, for some k, is this many steps after the first."""
    if back_off == 1:
        return offset % every == 0
    # The distances every · back_off^k add up to every · (back_off^k − 1) / (back_off − 1).
    k = round(math.log(offset * (back_off - 1) / every + 1, back_off))
    return any(int(every * (back_off**near - 1) / (back_off - 1)) == offset for near in (k - 1, k, k + 1) if near >= 0)


Every = int | Schedule | Mapping[str, int | Schedule]


def schedule_of(every: Every) -> Schedule:
    """The schedule that a number of steps, or a dict by step type, is short for."""
    return every if isinstance(every, Schedule) else Schedule(every)


class Budget:
    """Adds up the time of all steps and the time that recording used.

    `share` is the largest share of the time that recording may use: 0.02 for 2 %. None: no limit.
    """

    def __init__(self, share: float | None = None) -> None:
        self._allowed = share
        self._total_s = 0.0
        self._spent_s = 0.0
        self._last_s = 0.0

    def account(self, step_s: float, recording_s: float, *, recorded: bool) -> None:
        """Add the time of a step, and the part of it that recording used."""
        self._total_s += step_s
        self._spent_s += recording_s
        if recorded:
            self._last_s = recording_s

    def affords(self) -> bool:
        """Whether one more recorded step, as slow as the last, stays within the share; the first always does."""
        if self._allowed is None or not self._last_s:
            return True
        return self._spent_s + self._last_s <= self._allowed * (self._total_s + self._last_s)

    @property
    def share(self) -> float:
        """The share of the time that recording has used so far."""
        return self._spent_s / self._total_s if self._total_s else 0.0


class StepPolicy:
    """Decides which steps are read, and which of those are recorded.

    A step without a type follows the schedule's own numbers. A step with a type is recorded when enough steps have
    gone by since the last recorded one of its type, so that a rare type is recorded whenever it occurs.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.budget = Budget(schedule.budget)
        self.wanted = False  # whether the step in progress is recorded, however it goes
        self._of_type: dict[str, Schedule | None] = {}
        # For each type its last recorded step, and the distance to the next.
        self._last: dict[str, tuple[int, float]] = {}
        self._means: dict[str, float] = {}  # running means of metrics
        self._warned = False

    def begin(self, step: int, type: str | None) -> bool:
        """Whether the step is read: it is recorded, or may still be kept. Its type is None without `begin()`."""
        affordable = self.budget.affords()
        self.wanted = affordable and self._wants(step, type)
        return self.wanted or (affordable and (self._schedule.keep_if is not None or self._schedule.keep_last > 0))

    def _wants(self, step: int, type: str | None) -> bool:
        schedule = self._of(STEP_TYPE if type is None else type)
        if schedule is None:
            return False
        if type is None:
            return schedule.wants(step)
        last, distance = self._last.get(type, (None, 0.0))
        return schedule.picks(step) or (schedule.covers(step) and (last is None or step - last >= int(distance)))

    def _of(self, type: str) -> Schedule | None:
        if type not in self._of_type:
            self._of_type[type] = self._schedule.of_type(type)
        return self._of_type[type]

    def note_recorded(self, step: int, type: str) -> None:
        """A step of the type was recorded: the next one of the type is due after a distance."""
        schedule = self._of(type)
        if schedule is not None and isinstance(schedule.every, int):
            _, distance = self._last.get(type, (0, schedule.every / schedule.back_off))
            self._last[type] = step, distance * schedule.back_off

    def keeps(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether `keep_if` keeps the step; called for every step, in order."""
        if self._schedule.keep_if is None:
            return False
        facts = StepFacts(step, metrics, self._means)
        for name, value in metrics.items():
            if abs(value) < float("inf"):  # neither NaN nor Inf, which a mean would never forget
                before = self._means.get(name, value)
                self._means[name] = _DECAY * before + (1 - _DECAY) * value
        try:
            return bool(self._schedule.keep_if(facts))
        except Exception as error:  # noqa: BLE001  the user's rule must not end the user's training
            if not self._warned:
                self._warned = True
                text = f"keep_if failed at step {step} ({type(error).__name__}: {error}). Such steps are not kept."
                warnings.warn(text, LayerscopeWarning, stacklevel=4)
            return False


@dataclass(slots=True)
class Late:
    """What `keep()` decided about the step in progress."""

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
