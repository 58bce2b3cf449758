"""What a recorder asks of a framework: to listen to its tensors while a step is recorded."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from layerscope.capture.core.collector import StepSummaries
from layerscope.capture.core.named_tensors import NamedStep, NamedTensorReader


class Listener(Protocol):
    """A framework's side of a recorder: reads tensors while it is attached."""

    @property
    def named(self) -> NamedTensorReader:
        """Reads what the user names."""

    def context(self, name: str) -> AbstractContextManager[None]:
        """A `with` block whose forwards belong to a context, inside the one around it."""

    def attach(self) -> None:
        """Put the hooks in place."""

    def detach(self) -> None:
        """Take every hook away."""

    def pause(self) -> None:
        """Hear nothing until the next step begins or ends."""

    def abandon(self, *, keep: bool = False) -> None:
        """Hear nothing any more, without waiting for a lock, unless what was heard is kept; let hooks go when safe."""

    def discard(self) -> None:
        """Forget the step in progress."""

    def finish(self, step: int, now: NamedStep) -> StepSummaries:
        """Read what is read at the end of a step and hand over all of the step."""

    def end_step(self, step: int, *, recorded: bool = False, held: bool = False) -> None:
        """A step ends: it is recorded, or held for the case that it will be, or neither."""

    def keep(self, taken: StepSummaries) -> None:
        """A step that has ended is recorded."""

    def has_heard(self) -> bool:
        """Whether anything was read in the step in progress."""

    def spent_s(self) -> float:
        """Seconds that listening has taken in the training's threads since it was last asked."""

    def close(self) -> None:
        """Let go of everything, for good."""
