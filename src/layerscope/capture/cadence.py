"""Which steps are recorded when steps have types: each type has its own distances."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from layerscope.capture.schedule import Schedule
from layerscope.errors import StateError
from layerscope.records import STEP_TYPE

Every = int | Schedule | Mapping[str, int | Schedule]


class Cadence:
    """One schedule for all steps, or one for each type of step, by glob: the first that matches counts.

    A step without a type follows the schedule's own numbers. A step with a type is recorded when enough steps have gone
    by since the last recorded one of its type: a rare type is recorded whenever it comes.
    """

    def __init__(self, every: Every) -> None:
        if not isinstance(every, (int, Schedule, Mapping)):
            raise StateError(f"every={every!r} is no number of steps, no Schedule, and no dict of them by step type.")
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
