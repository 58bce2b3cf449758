"""Who wants to hear of tensors that the user names in the middle of a forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Hear = Callable[[object, str], None]


class Audience:
    """Those who listen right now."""

    def __init__(self) -> None:
        self.listeners: tuple[Hear, ...] = ()  # replaced as a whole, so that threads may read it at any time

    @contextmanager
    def listening(self, hear: Hear) -> Iterator[None]:
        """Have the function told of every tensor that is named inside the block."""
        self.listeners = (*self.listeners, hear)
        try:
            yield
        finally:
            self.listeners = tuple(other for other in self.listeners if other is not hear)


#: The one audience that all recorders of a process share.
audience = Audience()
