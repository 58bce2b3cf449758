"""The recorder of a training loop: counts steps, stores metrics and notes, and decides when the listener reads."""

from __future__ import annotations

import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, SupportsFloat, TypeVar

from layerscope.capture.core.collector import EndedSteps, MetricReader
from layerscope.capture.core.lifetime import call_in_forked_children, is_interrupted, keep_with, let_go
from layerscope.capture.core.named_tensors import Detail, StepData
from layerscope.capture.core.schedule import Balance, Late, Schedule, StepPolicy
from layerscope.errors import ArgumentError, LayerscopeWarning, StateError
from layerscope.model.patterns import nearest
from layerscope.model.records import STEP_TYPE, Event, Metric, Overhead, Sink

if TYPE_CHECKING:
    from typing_extensions import Self

    from layerscope.capture.core.listener import ModelListener


_ENDED = "Recording ended."
_NO_STEP = (
    "The recorder was closed before its first step ended. Step {} holds everything that was read until then: call "
    "step() once per optimizer step."
)


@dataclass(frozen=True, slots=True)
class Opened:
    """The sink and the listener of a recorder."""

    sink: Sink
    listener: ModelListener
    first_step: int = 0
    path: Path | None = None
    models: tuple[object, ...] = ()  # keep the recorder alive


@dataclass(slots=True)
class Pace:
    """When the step in progress began, and how much time recording has used."""

    began_s: float
    at_begin: int  # what `Progress` returned
    writer_s: float = 0.0  # CPU time of the writer until the step began
    listening_s: float = 0.0  # time to attach the hooks for the step


Open = Callable[["weakref.ref[Recorder]"], Opened]
Progress = Callable[[], int]  # returns another number once something was computed that could have been recorded


T = TypeVar("T")
_IDLE = nullcontext()


class Recorder:
    """Records a training: call `step()` once per optimizer step; use it in a `with` block, or call `close()`.

    In a step that is not scheduled no hook is in place, unless `keep_if` or `keep_last` may still keep the step.

    Until the first `step()` the model keeps the recorder alive; after that only references to the recorder do. A
    recorder without references closes itself. It does not keep the model alive. A copy of it records nothing.
    """

    _path: Path | None = None
    _sink: Sink
    _listener: ModelListener
    _is_open = False  # whether there is a sink to write to
    _closed = False
    _kept_by: tuple[weakref.ref[object], ...] = ()  # the models, until the first step ends

    def __init__(
        self,
        open: Open | None,
        schedule: Schedule,
        detail: Detail,
        progress: Progress,
        first_step: int = 0,
        *,
        enabled: bool = True,
    ) -> None:
        self._open = open  # None: nothing is ever recorded
        self._progress = progress
        self._enabled = False
        self._policy = StepPolicy(schedule)
        self._detail = detail
        self._ended_steps = EndedSteps(schedule.keep_last)
        self._balance = Balance()
        self._first_step = self._step = first_step
        self._metrics = MetricReader()
        self._contexts: set[str] = set()  # names that were checked
        self._now: StepData | None = None  # the step in progress, unless it is idle
        self._type = STEP_TYPE  # of the step in progress
        self._discarded = -1  # the last step that was
        self._listening = False
        self._pace = Pace(time.perf_counter(), progress())
        self.enabled = enabled

    def _start(self, open: Open) -> None:
        """Open the sink, and have the models keep this recorder alive."""
        opened = open(weakref.ref(self))
        self._sink, self._listener, self._path = opened.sink, opened.listener, opened.path
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

        False removes all hooks at once and drops the step in progress; from then on `step()` only counts. True records
        the step in progress if nothing of it was computed yet, and otherwise begins with the next step.
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
            self._ended_steps.remove_before(self._step)
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
        """The run's folder; None if there is none."""
        return self._path

    @property
    def overhead(self) -> float:
        """The share of the time that recording has used so far: 0.02 for 2 %."""
        return self._policy.budget.share

    @property
    def current_step(self) -> int:
        """Number of the step in progress."""
        return self._step

    def step(self, **metrics: SupportsFloat) -> None:
        """End the step in progress; keywords are its metrics, such as `loss=loss`."""
        self._must_be_open("step()")
        if self._kept_by:
            self._leave_models()
        if not self._enabled:
            self._step += 1
            self._pace.at_begin = self._progress()
            return
        entered_s, hooks_s = time.perf_counter(), self._listener.spent_s()  # evaluations are read in idle steps too
        numbers = self._metrics.read(metrics)
        kept = self._policy.keeps(self._step, numbers)
        recorded = self._end(kept=kept) if self._listening else None
        if not self._listening:
            self._listener.end_step(self._step)
        now = time.time()
        self._sink.put(*[Metric(self._step, name, number, now, self._type) for name, number in numbers.items()])
        self._account(recorded, entered_s, hooks_s)
        self._step += 1
        self._listen()

    def _end(self, *, kept: bool) -> StepData | None:
        """Hand over the step if it is recorded, keep it in memory if it may still be, or else discard it."""
        now = self._now
        assert now is not None
        late = now.late
        reason = "schedule" if self._policy.wanted else "keep_if" if kept else ""
        reason = late.reason if late is not None else reason
        self._listener.end_step(self._step, recorded=bool(reason), pending=self._ended_steps.size > 0)
        if not reason and not self._ended_steps.size:
            self._listener.discard()
            return None
        self._listener.finish(now)
        if not reason:
            self._ended_steps.add(now)
            return None
        before = self._ended_steps.size if kept else 0 if late is None else late.before
        for earlier in self._ended_steps.remove_from(self._step - before):
            self._put(earlier, f"before step {self._step}")
        self._put(now, reason)
        self._policy.note_recorded(self._step, now.type)
        return now

    def _put(self, ended: StepData, reason: str) -> None:
        """Hand over a step that has ended."""
        if reason != "schedule":
            self._sink.put(Event(ended.step, "kept", f"Kept: {reason}.", time.time()))
        self._sink.put(*ended.records)
        self._listener.keep(ended, reason)
        self._balance.note(ended.categories)

    def _account(self, recorded: StepData | None, entered_s: float, hooks_s: float) -> None:
        """Account for the time of the step and, if it was recorded, report the overhead."""
        now_s, writer_s = time.perf_counter(), self._sink.cpu_s
        step_s, self._pace.began_s = now_s - self._pace.began_s, now_s
        spent_s = hooks_s + now_s - entered_s + self._pace.listening_s + writer_s - self._pace.writer_s
        self._pace.writer_s = writer_s
        if self._listening:
            self._listener.spent_s()  # in finishing the step, which was timed here
        self._policy.budget.account(step_s, spent_s, recorded=recorded is not None)
        if recorded is not None:
            self._sink.put(Overhead(self._step, step_s, spent_s, recorded.summaries, recorded.bytes))

    def begin(self, type: str = STEP_TYPE) -> None:
        """Begin a step of a type; `Schedule` counts the steps of each type separately."""
        self._must_be_open("begin()")
        _check_type(type)
        now = self._now
        if now is not None and now.entries and not now.interrupted:
            raise StateError(
                f"begin({type!r}) came after tensors of the step were recorded. Call begin() first; if an error cut a "
                "step short, call discard(), or end it with step()."
            )
        self._discarded = -1
        spent_s = self._pace.listening_s
        if now is not None and now.entries:
            self._listener.discard()
        self._listen(type)
        self._pace.listening_s += spent_s

    def iteration(self) -> AbstractContextManager[None]:
        """Mark one of several passes of a step, as a `with` block; tensors recorded inside belong to it."""
        return _IDLE if self._now is None or self._listener.named.computes_again() else self._now.iteration()

    def context(self, name: str) -> AbstractContextManager[None]:
        """Label the forwards inside a `with` block, such as D(real) and D(fake) in one step.

        Tensors computed inside, and their gradients, are separate series. A context inside another one is called
        `outer/inner`. Weights, their gradients and updates have no context.
        """
        if not isinstance(name, str) or name not in self._contexts:
            _check_context(name)
            self._contexts.add(name)
        return self._listener.context(name) if self._is_open else nullcontext()

    def record(  # noqa: PLR0913  everything there is to say about a tensor
        self,
        name: str,
        tensor: T,
        type: str = "intermediate",
        role: str = "",
        batch_dim: int | None = 0,
        *,
        initial: bool = False,
        detail: str | None = None,
    ) -> T:
        """Record a tensor under a name, with its gradient and what it depends on; returns the tensor.

        `type` is what the tensor is in your network: `input`, `target`, `loss`, `intermediate`, `parameter`. Several
        tensors of one name have different roles. `batch_dim` is None for a tensor without a batch; `initial=True` is
        for tensors from before the first iteration. `detail` is `"summary"`, `"statistics"`, `"samples"` or `"all"`.
        """
        if self._now is not None:
            self._listener.named.record(tensor, (name, type, role, batch_dim, initial, detail))
        return tensor

    def link(self, source: object, target: object) -> None:
        """Add a dependency that no operation computes; each end is a tensor, or the name of a recorded one."""
        if self._now is not None:
            self._listener.named.link(source, target)

    def gradients(self, loss: str) -> None:
        """Name the loss of the gradients since the last such call: call it after each backward."""
        if self._now is not None:
            self._listener.named.name_gradients(loss)

    def keep(
        self,
        type: str | None = None,
        samples: int | Iterable[int] | None = None,
        categories: Sequence[object] | None = None,
        before: int = 0,
        reason: str = "",
    ) -> None:
        """Keep the step in progress, whatever the schedule says; call it before `step()`.

        `type` becomes the step's type. `samples` are indices into the batch, or a number of samples; with `categories`,
        one per sample of the batch, samples of categories that were rarely kept come first. `before=2` also keeps the
        two steps before, as far as `Schedule(keep_last=…)` has them in memory.
        """
        self._must_be_open("keep()")
        if type is not None:
            _check_type(type)
        if not self._enabled:
            return
        if self._now is None:
            if self._discarded == self._step:
                raise StateError(f"keep() came after discard() in step {self._step}: call one of them, not both.")
            raise StateError(
                f"keep() came in step {self._step}, which is not read. Give watch(every=Schedule(keep_last=1)) to "
                "be able to keep any step, or keep_if for a rule."
            )
        if not isinstance(before, int) or not 0 <= before <= self._ended_steps.size:
            raise ArgumentError(
                f"keep(before={before!r}) asks for steps that are no longer in memory. Give "
                f"watch(every=Schedule(keep_last={before!r}))."
            )
        late = Late(str(reason or "keep()"), before)
        if samples is not None or categories is not None:
            self._now.choose(late, samples, () if categories is None else categories, self._balance)
        if type is not None:
            self._type = self._now.type = type
        self._now.late = late

    def discard(self) -> None:
        """Record nothing of the step in progress after all."""
        self._must_be_open("discard()")
        if self._now is not None:
            self._discarded = self._step
            self._stop_listening()

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
            if never and self._policy.wanted:
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

    def _listen(self, type: str | None = None) -> None:
        """Listen to the step that begins, if it may be wanted."""
        began_s, self._pace.at_begin = time.perf_counter(), self._progress()
        self._type = STEP_TYPE if type is None else type
        if not self._enabled:
            return
        if not self._policy.begin(self._step, type):
            self._stop_listening()
        else:
            if not self._listening:
                self._listener.attach()
            self._listening = True
            self._now = StepData(self._step, self._type, self._detail, self._ended_steps.size > 0)
            self._listener.named.begin(self._now, expected=type is not None)
        self._pace.listening_s = time.perf_counter() - began_s

    def _stop_listening(self) -> None:
        if self._listening:
            self._listener.detach()
            self._listening, self._now = False, None

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
    return Recorder(None, Schedule(1), Detail(), lambda: 0, first_step, enabled=False)


def _no_attribute(recorder: Recorder, name: str) -> AttributeError:
    """The error of an attribute that is not there, or cannot be set."""
    names = [known for known in dir(type(recorder)) if known[0] != "_"]
    text = (
        f"A recorder has no attribute {name!r}. {nearest(name, names)}"
        if name not in names
        else f"{name!r} cannot be set."
    )
    return AttributeError(text, name=name, obj=recorder)


def _check_type(type: object) -> None:
    if not isinstance(type, str) or not type:
        raise ArgumentError(f"A step type is a string, not {type!r}: begin(type='long sequence').")


def _check_context(name: object) -> None:
    if not isinstance(name, str) or not name or not {"/", "@", "#"}.isdisjoint(name):
        raise ArgumentError(
            f"A context cannot be called {name!r}: give a string without '/', '@' and '#', such as context('real'). "
            "Contexts inside each other are joined by '/'."
        )
