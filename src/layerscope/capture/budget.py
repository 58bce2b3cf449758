"""What recording costs, and whether the next step may be recorded within a share of the time."""

from __future__ import annotations

from layerscope.errors import StateError


class Budget:
    """Keeps account of all steps and of what recording took of them.

    `share` is the part of the whole time that recording may take: 0.02 for 2 %. None: as much as it takes.
    """

    def __init__(self, share: float | None = None) -> None:
        if share is not None and not 0 < share < 1:
            raise StateError(f"budget={share} is no share of the time. Give a number between 0 and 1: 0.02 for 2 %.")
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
