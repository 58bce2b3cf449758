"""The recorder a training loop holds: it counts steps, takes metrics and notes, and decides when to listen."""

from __future__ import annotations

import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, SupportsFloat

from layerscope.capture.core.collector import StepSummaries
from layerscope.capture.core.loop_api import (
    EndedStep,
    EndedSteps,
    InLoop,
    call_in_forked_children,
    is_interrupted,
    keep_with,
    let_go,
)
from layerscope.capture.core.named_tensors import DependencyCache, Detail, NamedStep, NamedTensorReader, NodeSpec
from layerscope.capture.core.schedule import Balance, Budget, Cadence, Every, Keeping
from layerscope.errors import ArgumentError, LayerscopeWarning, StateError
from layerscope.model.records import STEP_TYPE, Event, Metric, Overhead, Sink

if TYPE_CHECKING:
    from typing_extensions import Self


COLUMNS = ("step", "time_s", "type")  # of every table of metrics
_ENDED = "Recording ended."
_NO_STEP = (
    "The recorder was closed before its first step ended. Step {} holds everything that was read until then: call "
    "step() once per optimizer step."
)


class NamedListener(NamedTensorReader, Protocol):
    """Reads what the user names in the step in progress."""

    def begin(self, *, expected: bool, traced: bool) -> None:
        """Make ready for a step, in which it is certain or not that something will be named."""
        ...


class Listener(Protocol):
    """A framework's side of a recorder: reads tensors while it is attached."""

    @property
    def named(self) -> NamedListener:
        """Reads what the user names."""
        ...

    def context(self, name: str) -> AbstractContextManager[None]:
        """A `with` block whose forwards belong to a context, inside the one around it."""
        ...

    def attach(self) -> None:
        """Put the hooks in place."""
        ...

    def detach(self) -> None:
        """Take every hook away."""
        ...

    def pause(self) -> None:
        """Hear nothing until the next step begins or ends."""
        ...

    def abandon(self, *, keep: bool = False) -> None:
        """Hear nothing any more, without waiting for a lock, unless what was heard is kept; let hooks go when safe."""
        ...

    def discard(self) -> None:
        """Forget the step in progress."""
        ...

    def finish(self, step: int, now: NamedStep) -> StepSummaries:
        """Read what is read at the end of a step and hand over all of the step."""
        ...

    def end_step(self, step: int, *, recorded: bool = False, held: bool = False) -> None:
        """A step ends: it is recorded, or held for the case that it will be, or neither."""
        ...

    def keep(self, taken: StepSummaries) -> None:
        """A step that has ended is recorded."""
        ...

    def has_heard(self) -> bool:
        """Whether anything was read in the step in progress."""
        ...

    def spent_s(self) -> float:
        """Seconds that listening has taken in the training's threads since it was last asked."""
        ...

    def close(self) -> None:
        """Let go of everything, for good."""
        ...


@dataclass(frozen=True, slots=True)
class When:
    """Which steps are recorded."""

    every: Every
    budget: Budget = field(default_factory=Budget)
    keeping: Keeping = field(default_factory=Keeping)  # decides at the end of steps that the schedule does not want
    keep_last: int = 0  # of so many steps all is held after they ended
    detail: Detail = field(default_factory=Detail)

    @property
    def evaluation(self) -> int:
        """How many forwards of an evaluation are recorded."""
        return Cadence(self.every).evaluation


@dataclass(frozen=True, slots=True)
class Opened:
    """What a recorder writes to and listens with."""

    sink: Sink
    listener: Listener
    first_step: int = 0
    path: Path | None = None
    models: tuple[object, ...] = ()  # keep the recorder alive


@dataclass(slots=True)
class Pace:
    """When the step in progress began, and what it took of our own time."""

    began_s: float
    at_begin: int  # what `Progress` gave
    writer_s: float = 0.0  # of the writer, until then
    listening_s: float = 0.0  # to make ready for it


Open = Callable[["weakref.ref[Recorder]"], Opened]
Progress = Callable[[], int]  # gives another number once something was computed that could have been recorded


class Recorder(InLoop):
    """Records a training: call `step()` once per optimizer step, and `close()` it, or use it in a `with` block.

    A step the schedule does not want has no hooks in place and costs nothing, unless `keep_if` may want it in the end.

    Until the first `step()` the model keeps the recorder alive; from then on only the caller of `step()` does. A
    recorder that nothing keeps alive closes itself. It does not keep the model alive. A copy of it records nothing.
    """

    _path: Path | None = None
    _sink: Sink
    _listener: Listener
    _book: DependencyCache
    _is_open = False  # whether there is a sink to write to
    _closed = False
    _kept_by: tuple[weakref.ref[object], ...] = ()  # the models, until the first step ends

    def __init__(
        self, open: Open | None, when: When, progress: Progress, first_step: int = 0, *, enabled: bool = True
    ) -> None:
        self._open = open  # None: nothing is ever recorded
        self._progress = progress
        self._enabled = False
        self._cadence = Cadence(when.every)
        self._budget = when.budget
        self._keeping = when.keeping
        self._detail = when.detail
        self._ended_steps = EndedSteps(when.keep_last)
        self._balance = Balance()
        self._first_step = self._step = first_step
        self._names: set[str] = set()  # of metrics
        self._spelling: dict[str, str] = {}  # of metrics, by their names in lower case
        self._nodes: dict[tuple[object, ...], NodeSpec] = {}
        self._contexts: set[str] = set()
        self._listening = False
        self._wanted = False  # whether the step in progress is recorded, however it goes
        self._pace = Pace(time.perf_counter(), progress())
        self.enabled = enabled

    def _start(self, open: Open) -> None:
        """Open the run's folder, and let the model keep this recorder alive."""
        opened = open(weakref.ref(self))
        self._sink, self._listener, self._path = opened.sink, opened.listener, opened.path
        self._book = DependencyCache(self._sink)
        self._pace.writer_s = self._sink.cpu_s
        counted, self._first_step = self._step - self._first_step, opened.first_step
        self._step = self._first_step + counted
        self._is_open = True
        self._sink.when_program_ends(weakref.WeakMethod(self._end_with_program))
        call_in_forked_children(self._abandon)
        self._kept_by = tuple(keep_with(model, self) for model in opened.models)

    @property
    def enabled(self) -> bool:
        """Whether steps are recorded; set it to pause and to resume, at any time.

        False takes the hooks away at once and drops the step in progress; from then on steps are counted, and nothing
        is recorded. True records the step in progress if nothing of it was computed yet, and otherwise the next ones.
        """
        return self._enabled

    @enabled.setter
    def enabled(self, on: bool) -> None:
        if not isinstance(on, bool):
            raise ArgumentError(f"enabled={on!r} is neither True nor False.")
        if on is self._enabled or self._open is None:
            return
        self._must_be_open("enabled")
        if not self._is_open:
            self._start(self._open)
        self._enabled = on
        if not on:
            self._stop_listening()
            self._listener.pause()
            self._ended_steps.forget_before(self._step)
            return
        self._listener.end_step(self._step - 1)
        if self._pace.at_begin == self._progress():
            self._pace.began_s = time.perf_counter()
            try:
                self._listen()
            except BaseException:
                self.close()
                raise

    @property
    def path(self) -> Path | None:
        """The run's folder, where there is one."""
        return self._path

    @property
    def overhead(self) -> float:
        """The part of the training's time that recording has taken so far: 0.02 for 2 %."""
        return self._budget.share

    @property
    def current_step(self) -> int:
        """Number of the step in progress."""
        return self._step

    def step(self, **metrics: SupportsFloat) -> None:
        """End the step in progress; keywords are metrics of it, such as its loss."""
        self._must_be_open("step()")
        if self._kept_by:
            self._leave_models()
        if not self._enabled:
            self._step += 1
            self._pace.at_begin = self._progress()
            return
        entered_s, hooks_s = time.perf_counter(), self._listener.spent_s()  # evaluations are read in idle steps too
        if not metrics.keys() <= self._names:
            self._check(metrics)
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        kept = self._keeping.keeps(self._step, numbers)
        taken = self._end(kept=kept) if self._listening else None
        if not self._listening:
            self._listener.end_step(self._step)
        now = time.time()
        self._sink.put(*[Metric(self._step, name, number, now, self._type) for name, number in numbers.items()])
        self._account(taken, entered_s, hooks_s)
        self._step += 1
        self._listen()

    def _end(self, *, kept: bool) -> StepSummaries | None:
        """Hand over the step, or hold it, or forget it if nobody wants it."""
        now = self._now
        assert now is not None
        late = now.late
        reason = "schedule" if self._wanted else "keep_if" if kept else ""
        reason = late.reason if late is not None else reason
        self._listener.end_step(self._step, recorded=bool(reason), held=self._ended_steps.size > 0)
        if not reason and not self._ended_steps.size:
            self._listener.discard()
            return None
        ended = EndedStep(self._step, self._listener.finish(self._step, now), now)
        if ended.taken.dependence is not None:
            self._book.learn(now.type, ended.taken.dependence)
        if not reason:
            self._ended_steps.hold(ended)
            return None
        before = self._ended_steps.size if kept else 0 if late is None else late.before
        for earlier in self._ended_steps.take(self._step - before):
            self._put(earlier, f"before step {self._step}")
        self._put(ended, reason)
        self._cadence.note(self._step, now.type)
        return ended.taken

    def _put(self, ended: EndedStep, reason: str) -> None:
        """Hand over a step that has ended."""
        if reason != "schedule":
            self._sink.put(Event(ended.step, "kept", f"Kept: {reason}.", time.time()))
        self._sink.put(*ended.taken.records)
        self._listener.keep(ended.taken)
        found = ended.taken.dependence
        if found is not None:
            info = ended.now.info(ended.step, reason, self._book.graphs(found))
            self._balance.note(info.categories)
            self._book.put(info, found)

    def _account(self, taken: StepSummaries | None, entered_s: float, hooks_s: float) -> None:
        """Keep what the step took and, if it was recorded, what that cost."""
        now_s, writer_s = time.perf_counter(), self._sink.cpu_s
        step_s, self._pace.began_s = now_s - self._pace.began_s, now_s
        spent_s = hooks_s + now_s - entered_s + self._pace.listening_s + writer_s - self._pace.writer_s
        self._pace.writer_s = writer_s
        if self._listening:
            self._listener.spent_s()  # in finishing the step, which was timed here
        self._budget.account(step_s, spent_s, recorded=taken is not None)
        if taken is not None:
            self._sink.put(Overhead(self._step, step_s, spent_s, taken.summaries, taken.bytes))

    def note(self, text: str) -> None:
        """Keep a note with the step in progress."""
        self._must_be_open("note()")
        if self._enabled:
            self._sink.put(Event(self._step, "note", text, time.time()))

    def close(self) -> None:
        """Take every hook away and finish the run's files. Closing twice does nothing."""
        self._close(_ENDED)

    def _close(self, text: str, *, at_any_time: bool = False) -> None:
        """Keep what was recorded, say what was not, and let go of everything."""
        if not self._is_open:
            self._open = None  # it records nothing from now on, and takes anything
            return
        if self._closed:
            return
        self._closed = True
        if self._kept_by:
            self._leave_models()
        unended = self._listening and self._listener.has_heard()
        never = unended and self._step == self._first_step
        try:
            if never and self._wanted:
                self._end(kept=False)
            if at_any_time:
                self._listener.abandon(keep=True)
            else:
                self._listener.close()
        finally:
            self._now, self._listening = None, False
            if self._step > self._first_step:  # also steps without metrics count when the run is resumed
                lost = f" Step {self._step} had not ended: it is not recorded." if unended and text != _ENDED else ""
                self._sink.put(Event(self._step - 1, "info", f"{text}{lost}", time.time()))
            if never:
                self._sink.put(Event(self._step, "warning", _NO_STEP.format(self._step), time.time()))
            self._sink.close()
        if never:
            warnings.warn(
                f"{self.path or 'The recorder'}: {_NO_STEP.format(self._step)}", LayerscopeWarning, stacklevel=3
            )

    def _leave_models(self) -> None:
        for model in self._kept_by:
            let_go(model, self)
        self._kept_by = ()

    def _end_with_program(self) -> None:
        self._close("The program ended without close(): recording ended with it.", at_any_time=True)

    def _end_unheld(self, *, at_any_time: bool = True) -> None:
        text = "Recording ended: nothing kept the recorder alive any more, and close() was not called."
        self._close(text, at_any_time=at_any_time)

    def __del__(self) -> None:
        if not self._is_open or self._closed or sys.is_finalizing():
            return
        if is_interrupted():
            self._sink.call_soon(self._end_unheld)  # it lives on until then
        else:
            self._end_unheld(at_any_time=False)

    def _abandon(self) -> None:
        """In a forked child: record nothing any more, and wait for no lock."""
        self._open, self._now = None, None
        self._is_open = self._enabled = self._listening = False
        self._listener.abandon()

    def _check(self, names: Iterable[str]) -> None:
        """Accept names of metrics that tables and SQL, which ignores case, can tell from the others."""
        for name in names:
            if name in COLUMNS:
                raise ArgumentError(
                    f"A metric cannot be called {name!r}: every table of metrics has a column of that name. Rename it."
                )
            first = self._spelling.setdefault(name.lower(), name)
            if first != name:
                raise ArgumentError(
                    f"The metrics {first!r} and {name!r} differ only in case, which SQL ignores. Rename one of them."
                )
            self._names.add(name)

    def _listen(self, type: str | None = None) -> None:
        """Listen to the step that begins, if it may be wanted."""
        began_s, self._pace.at_begin = time.perf_counter(), self._progress()
        self._type = STEP_TYPE if type is None else type
        if not self._enabled:
            return
        affordable = self._budget.affords()
        self._wanted = affordable and self._cadence.wants(self._step, type)
        if not self._wanted and not (affordable and (self._keeping.is_late or self._ended_steps.size)):
            self._stop_listening()
        else:
            if not self._listening:
                self._listener.attach()
            self._listening = True
            named = self._listener.named
            known = (self._book.known, self._nodes)
            self._now = NamedStep(named, self._detail, self._ended_steps.size > 0, *known, self._type)
            named.begin(expected=type is not None, traced=self._book.wants(self._type))
        self._pace.listening_s = time.perf_counter() - began_s

    def _stop_listening(self) -> None:
        if self._listening:
            self._listener.detach()
            self._listening, self._now = False, None

    def _within(self, context: str) -> AbstractContextManager[None]:
        return self._listener.context(context) if self._is_open else nullcontext()

    def _begin(self, type: str) -> None:
        spent_s = self._pace.listening_s
        if self._now is not None and self._now.entries:
            self._listener.discard()
        self._listen(type)
        self._pace.listening_s += spent_s

    def _must_be_open(self, call: str) -> None:
        if self._closed:
            raise StateError(
                f"{call} came after the recorder was closed. Call it inside the `with` block, or watch again."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return disabled, (self._step,)

    if not TYPE_CHECKING:  # a type checker knows the attributes there are

        def __setattr__(self, name: str, value: object) -> None:
            if name[0] != "_" and name != "enabled":
                raise _no_attribute(self, name)
            object.__setattr__(self, name, value)

        def __getattr__(self, name: str) -> NoReturn:  # called for what is not there
            raise _no_attribute(self, name)

    def __repr__(self) -> str:
        paused = "" if self._enabled else ", paused"
        state = "closed" if self._closed else f"step {self._step}{paused}"
        return f"{type(self).__name__}({str(self.path) if self.path else 'nowhere'!r}, {state})"


def disabled(first_step: int = 0) -> Recorder:
    """A recorder that counts steps and records nothing: of LAYERSCOPE_DISABLED, and what a copy of a recorder is."""
    return Recorder(None, When(every=1), lambda: 0, first_step, enabled=False)


def _no_attribute(recorder: Recorder, name: str) -> AttributeError:
    """The error of an attribute that is not there, or cannot be set."""
    names = [known for known in dir(type(recorder)) if known[0] != "_"]
    near = get_close_matches(name, names, 1, 0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(names)}."
    text = f"A recorder has no attribute {name!r}. {hint}" if name not in names else f"{name!r} cannot be set."
    return AttributeError(text, name=name, obj=recorder)


def _number(name: str, value: SupportsFloat) -> float:
    # A tensor that requires grad warns when it is turned into a number, but not when it is asked for its item.
    item = getattr(value, "item", None)
    try:
        return float(value if item is None else item())
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"Metric {name!r} is not one number but {type(value).__name__} ({error}). Give a float."
        ) from error
