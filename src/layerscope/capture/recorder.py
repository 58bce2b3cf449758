"""The recorder a training loop holds: it counts steps, takes KPIs and notes, and decides when to listen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, SupportsFloat

from layerscope.capture.schedule import Schedule
from layerscope.errors import StateError
from layerscope.records import Event, Kpi, Sink

if TYPE_CHECKING:
    from typing_extensions import Self


COLUMNS = ("step", "time_s")  # of every table of KPIs


class Listener(Protocol):
    """A framework's side of a recorder: reads tensors while it is attached."""

    def attach(self) -> None:
        """Put the hooks in place."""
        ...

    def detach(self) -> None:
        """Take every hook away."""
        ...

    def finish(self, step: int) -> None:
        """Read what is read at the end of a step and hand over the step's summaries."""
        ...


class Recorder:
    """Records a training: call `step()` once per optimizer step, and `close()` it, or use it in a `with` block.

    A step the schedule does not want has no hooks in place and costs nothing.
    """

    def __init__(self, sink: Sink, listener: Listener, schedule: Schedule, first_step: int = 0) -> None:
        self._sink = sink
        self._listener = listener
        self._schedule = schedule
        self._step = first_step
        self._listening = False
        self._closed = False
        self._listen()

    @property
    def current_step(self) -> int:
        """Number of the step in progress."""
        return self._step

    def step(self, **kpis: SupportsFloat) -> None:
        """End the step in progress; keywords are KPIs of it, such as its loss."""
        self._must_be_open("step()")
        numbers = {name: _number(name, value) for name, value in kpis.items()}
        if self._listening:
            self._listener.finish(self._step)
        now = time.time()
        for name, number in numbers.items():
            self._sink.put(Kpi(self._step, name, number, now))
        self._step += 1
        self._listen()

    def note(self, text: str) -> None:
        """Keep a note with the step in progress."""
        self._must_be_open("note()")
        self._sink.put(Event(self._step, "note", text, time.time()))

    def close(self) -> None:
        """Take every hook away and finish the run's files. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._listening:
            self._listener.detach()
            self._listening = False
        self._sink.close()

    def _listen(self) -> None:
        wanted = self._schedule.wants(self._step)
        if wanted and not self._listening:
            self._listener.attach()
        elif self._listening and not wanted:
            self._listener.detach()
        self._listening = wanted

    def _must_be_open(self, call: str) -> None:
        if self._closed:
            raise StateError(
                f"{call} came after the recorder was closed. Call it inside the `with` block, or watch again."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class DisabledRecorder(Recorder):
    """A recorder that records nothing: what `watch` returns when LAYERSCOPE_DISABLED is set."""

    def __init__(self) -> None:
        self._closed = False

    @property
    def current_step(self) -> int:
        """Always 0: nothing is counted."""
        return 0

    def step(self, **kpis: SupportsFloat) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _number(name: str, value: SupportsFloat) -> float:
    if name in COLUMNS:
        raise StateError(f"A KPI cannot be called {name!r}: every table of KPIs has a column of that name. Rename it.")
    # A tensor that requires grad warns when it is turned into a number, a detached one does not.
    detach = getattr(value, "detach", None)
    try:
        return float(detach() if callable(detach) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise StateError(
            f"KPI {name!r} is not one number but {type(value).__name__} ({error}). Give a float."
        ) from error
