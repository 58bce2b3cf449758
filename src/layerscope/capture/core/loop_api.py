"""Who keeps a recorder alive, and what becomes of it in a forked process."""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import TypeVar

from layerscope.capture.core.collector import StepSummaries
from layerscope.capture.core.named_tensors import NamedStep
from layerscope.capture.core.schedule import Balance, Late
from layerscope.errors import ArgumentError, StateError
from layerscope.model.records import STEP_TYPE

# The garbage collector runs finalizers at any point of any thread. In these modules a thread may hold a lock that
# closing a recorder needs, or torch may be going through its hooks, and none may be taken away.
_BUSY = (
    "layerscope.store",
    "layerscope.stats",
    "layerscope.capture.core.collector",
    "layerscope.capture.torch",
    "torch.nn",
    "torch.optim",
    "importlib",
    "threading",
)


_keepers: weakref.WeakKeyDictionary[object, object] = weakref.WeakKeyDictionary()  # model → its recorder
_in_child: set[weakref.WeakMethod[Callable[[], None]]] = set()  # what forked children call


def keep_with(model: object, recorder: object) -> weakref.ref[object]:
    """Keep the recorder alive as long as the model is, or until the model gets another one; a reference to the model.

    The recorder itself must not keep the model alive.
    """
    _keepers[model] = recorder
    return weakref.ref(model)


def let_go(of: weakref.ref[object], recorder: object) -> None:
    """Have the model keep the recorder alive no longer."""
    model = of()
    if model is not None and _keepers.get(model) is recorder:
        del _keepers[model]


def is_interrupted() -> bool:
    """Whether this is a finalizer that interrupts something which closing a recorder here would disturb."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_BUSY):
            return True
        frame = frame.f_back
    return False


def call_in_forked_children(method: Callable[[], None]) -> None:
    """Have a method called in every forked child, such as a worker of a data loader, as long as its object lives."""
    _register_once()
    _in_child.add(weakref.WeakMethod(method, _in_child.discard))


@cache
def _register_once() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_call_all)


def _call_all() -> None:
    for ref in tuple(_in_child):
        method = ref()
        if method is not None:
            method()


T = TypeVar("T")
_IDLE = nullcontext()


@dataclass(frozen=True, slots=True)
class EndedStep:
    """A step that has ended and was not recorded, but may still be."""

    step: int
    taken: StepSummaries
    now: NamedStep


class EndedSteps:
    """The last few steps that nobody wanted yet."""

    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or size < 0:
            raise ArgumentError(f"keep_last={size!r} is no number of steps. Give 0 to hold none, 5 for the last five.")
        self.size = size
        self._held: deque[EndedStep] = deque()

    def hold(self, ended: EndedStep) -> None:
        """Hold a step until it is too old."""
        self._held.append(ended)
        self.forget_before(ended.step - self.size + 1)

    def take(self, first: int) -> list[EndedStep]:
        """The held steps from the given number on, which are held no longer."""
        taken: list[EndedStep] = []
        while self._held and self._held[-1].step >= first:
            taken.insert(0, self._held.pop())
        return taken

    def forget_before(self, step: int) -> None:
        """Let go of older steps."""
        while self._held and self._held[0].step < step:
            self._held.popleft()


class InLoop:
    """The calls of a recorder by which tensors are named and steps chosen."""

    _now: NamedStep | None = None  # the step in progress, unless it is idle
    _type = STEP_TYPE  # of the step in progress
    _discarded = -1  # the last step that was
    _contexts: set[str]  # names that were checked
    _balance: Balance
    _ended_steps: EndedSteps
    _step: int
    _enabled: bool

    def begin(self, type: str = STEP_TYPE) -> None:
        """Begin a step of a type; each type has its own distance between recorded steps."""
        self._must_be_open("begin()")
        _check_type(type)
        now = self._now
        if now is not None and now.entries and not now.interrupted:
            raise StateError(
                f"begin({type!r}) came after tensors of the step were recorded. Call begin() first; where an error cut "
                "a step short, call discard(), or end it with step()."
            )
        self._discarded = -1
        self._begin(type)

    def iteration(self) -> AbstractContextManager[None]:
        """A `with` block around one pass of several in a step; what is recorded inside belongs to it."""
        return _IDLE if self._now is None or self._now.reader.computes_again() else _iteration(self._now)

    def context(self, name: str) -> AbstractContextManager[None]:
        """A `with` block around forwards that mean something of their own, such as D(real) and D(fake) in one step.

        What is computed inside has series of its own, gradients included. A context inside another one is called
        `outer/inner`. Weights, their gradients and updates belong to none.
        """
        if not isinstance(name, str) or name not in self._contexts:
            _check_context(name)
            self._contexts.add(name)
        return self._within(name)

    def record(  # noqa: PLR0913  all that can be said of a tensor
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
        """The tensor itself; it is recorded under the name, with its gradient and what it depends on.

        `type` is what it is in your network: `input`, `target`, `loss`, `intermediate`, `parameter`. Several tensors
        can go by one name in different roles. `batch_dim` is None for a tensor without a batch; `initial=True` is for
        what is there before the first iteration. `detail` is one of `"summary"`, `"statistics"`, `"samples"`, `"all"`.
        """
        if self._now is not None:
            self._now.record(tensor, (name, type, role, batch_dim, initial, detail))
        return tensor

    def link(self, source: object, target: object) -> None:
        """Let one tensor depend on another beyond what is computed; each is a tensor, or the name of a recorded one."""
        if self._now is not None:
            self._now.link(source, target)

    def gradients(self, loss: str) -> None:
        """Say which loss the gradients are of that have arrived since the last such call: call it after a backward."""
        if self._now is not None:
            self._now.gradients(loss)

    def keep(
        self,
        type: str | None = None,
        samples: int | Iterable[int] | None = None,
        categories: Sequence[object] | None = None,
        before: int = 0,
        reason: str = "",
    ) -> None:
        """Keep the step in progress, whatever the schedule says, and decide what of it: call it before `step()`.

        `type` is the step's type from now on. `samples` are places in the batch, or how many; with `categories`, one
        for each sample of the batch, those of categories that were seldom kept come first. `before=2` keeps the two
        steps before it too, as far as `keep_last` holds them.
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
                f"keep() came in step {self._step}, which is not listened to. Give watch(keep_last=1) to be able to "
                "keep any step, or keep_if for a rule."
            )
        if not isinstance(before, int) or not 0 <= before <= self._ended_steps.size:
            raise ArgumentError(
                f"keep(before={before!r}) asks for steps that are not held. Give watch(keep_last={before!r})."
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

    def _within(self, context: str) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _begin(self, type: str) -> None:
        raise NotImplementedError

    def _stop_listening(self) -> None:
        raise NotImplementedError

    def _must_be_open(self, call: str) -> None:
        raise NotImplementedError


def _check_type(type: object) -> None:
    if not isinstance(type, str) or not type:
        raise ArgumentError(f"A step type is a text, not {type!r}: begin(type='long sequence').")


def _check_context(name: object) -> None:
    if not isinstance(name, str) or not name or not {"/", "@", "#"}.isdisjoint(name):
        raise ArgumentError(
            f"A context cannot be called {name!r}: give a text without '/', '@' and '#', such as context('real'). "
            "Contexts inside each other are joined by '/'."
        )


@contextmanager
def _iteration(now: NamedStep) -> Iterator[None]:
    now.enter_iteration()
    ended = False
    try:
        yield
        ended = True
    finally:
        now.leave_iteration(interrupted=not ended)
