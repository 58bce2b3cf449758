"""Steps that are kept only once it is known how they went, and which samples of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from layerscope.errors import LayerscopeWarning, StateError

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
            raise StateError(f"keep_if asks for {name!r}, which the step does not have. It has: {names}.") from None


KeepIf = Callable[[StepFacts], bool]


class Keeping:
    """Asks the user's rule whether a step is kept, and remembers the running means it may want."""

    def __init__(self, rule: KeepIf | None = None) -> None:
        if rule is not None and not callable(rule):
            raise StateError(
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
