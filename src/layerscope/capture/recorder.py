"""The recorder a training loop holds: it counts steps, takes KPIs and notes, and decides when to listen."""

from __future__ import annotations

import time
from pathlib import Path
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
        self.path: Path | None = None  # the run's folder, where there is one
        self._sink = sink
        self._listener = listener
        self._schedule = schedule
        self._first_step = self._step = first_step
        self._names: dict[str, str] = {}
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
        numbers = {self._name(name): _number(name, value) for name, value in kpis.items()}
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
        if self._step > self._first_step:  # also steps without KPIs count when the run is resumed
            self._sink.put(Event(self._step - 1, "info", "Recording ended.", time.time()))
        self._sink.close()

    def _name(self, name: str) -> str:
        """A KPI's name, if tables and SQL, which ignores case, can tell it from the others."""
        if name in COLUMNS:
            raise StateError(
                f"A KPI cannot be called {name!r}: every table of KPIs has a column of that name. Rename it."
            )
        first = self._names.setdefault(name.lower(), name)
        if first != name:
            raise StateError(
                f"The KPIs {first!r} and {name!r} differ only in case, which SQL ignores. Rename one of them."
            )
        return name

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

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"step {self._step}"
        return f"{type(self).__name__}({str(self.path) if self.path else 'nowhere'!r}, {state})"


class DisabledRecorder(Recorder):
    """A recorder that records nothing: what `watch` returns when LAYERSCOPE_DISABLED is set."""

    def __init__(self) -> None:
        self.path = None
        self._step = 0
        self._closed = False

    def step(self, **kpis: SupportsFloat) -> None:
        """Count the step, and nothing else."""
        self._step += 1

    def note(self, text: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _number(name: str, value: SupportsFloat) -> float:
    # A tensor that requires grad warns when it is turned into a number, a detached one does not.
    detach = getattr(value, "detach", None)
    try:
        return float(detach() if callable(detach) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise StateError(
            f"KPI {name!r} is not one number but {type(value).__name__} ({error}). Give a float."
        ) from error
