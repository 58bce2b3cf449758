"""Which mode and context a forward belongs to, and which evaluations are recorded."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, NamedTuple

from layerscope.capture.core.collector import Collector
from layerscope.capture.core.framework import Framework


class ContextState(NamedTuple):
    """What `leave` goes back to."""

    context: str
    is_again: bool


class _Thread(threading.local):
    def __init__(self) -> None:
        self.current = ""
        self.is_again = False  # whether that is the context of a forward which a backward computes again
        self.step = -1
        self.left: list[tuple[int, str]] = []  # contexts of the step: which nodes were made before it was left


class Contexts:
    """The context of each thread, and those of the nodes of the autograd graph that a recorded step has made."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._thread = _Thread()
        self._step = 0
        self.is_followed = False  # whether the step is recorded

    def start_over(self) -> None:
        """Forget the step; a context that is open stays."""
        self._step += 1

    @property
    def current(self) -> str:
        """The context of what is computed now; where a backward computes a forward again, the one that forward had."""
        thread = self._thread
        if thread.is_again or self._framework.backward() == -1:
            return thread.current
        node = self._framework.running_node()
        if node is None or thread.step != self._step:
            return thread.current
        position = bisect_right(thread.left, node, key=lambda left: left[0])
        return thread.left[position][1] if position < len(thread.left) else thread.current

    def enter(self, name: str) -> ContextState:
        """Go to a context inside the present one, or, without a name, to that one; the result is for `leave`."""
        thread, around = self._thread, self.current
        state = ContextState(thread.current, thread.is_again)
        thread.is_again = self._framework.backward() != -1
        self._change(thread, (f"{around}/{name}" if around else name) if name else around)
        return state

    def leave(self, state: ContextState) -> None:
        """Go back to where a context was entered."""
        thread = self._thread
        context, thread.is_again = state
        self._change(thread, context)

    def _change(self, thread: _Thread, context: str) -> None:
        if self.is_followed:
            if thread.step != self._step:
                thread.step = self._step
                thread.left.clear()
            thread.left.append((self._framework.next_node(), thread.current))
        thread.current = context


class Within:
    """The `with` block of a context; cheap, for it is entered in idle steps too."""

    __slots__ = ("_contexts", "_left", "_name")

    def __init__(self, contexts: Contexts, name: str) -> None:
        self._contexts = contexts
        self._name = name
        self._left: list[ContextState] = []

    def __enter__(self) -> None:
        self._left.append(self._contexts.enter(self._name))

    def __exit__(self, *exception: object) -> None:
        self._contexts.leave(self._left.pop())


class Evaluation(NamedTuple):
    """Forwards of a root in evaluation mode that follow one another."""

    step: int  # that its rows carry
    site: str
    context: str


class Evaluations:
    """Which forwards in evaluation mode are read, and which step their rows carry.

    That is the last step that ended, or the step in progress if the model has been called in training mode in it. The
    rows are put aside until the evaluation is over. A root that never is in training mode is not evaluated: its
    forwards in a recorded step belong to the step.
    """

    def __init__(self, framework: Framework, collector: Collector, contexts: Contexts, most: int) -> None:
        self._framework = framework
        self._collector = collector
        self._contexts = contexts
        self._most = most  # forwards that are read; 0: only those of recorded steps, and all of them
        self.roots: Mapping[Any, str] = {}  # whose forwards are those of the model, and their sites
        self.is_apart = False  # whether only the evaluation is read, and not the step around it
        self._step = 0  # in progress
        self._has_trained = False  # that step
        self._trained: set[str] = set()  # sites that were called in training mode
        self._done: set[str] = set()  # sites that were evaluated since the last recorded step, or in it
        self._counts: dict[Evaluation, tuple[int, int]] = {}  # forwards that were read, and all

    def reads(self, module: Any) -> bool:
        """Whether a forward is read: one that no other call of the model is around."""
        site = self.roots.get(module)
        if self.is_apart:
            return site is not None and not module.training and self._is_due(site) and self.count(site)
        self._collector.aside = None
        if site is None or not self._most:
            return True
        if module.training:
            self.train(site)
            return True
        is_evaluation = site in self._trained
        if is_evaluation and not self._has_trained and not self._is_due(site):
            return False
        return self.count(site, limited=is_evaluation or not self._framework.is_grad_enabled())

    @property
    def is_due(self) -> bool:
        """Whether any evaluation would be recorded: the first one always, the next when a step was recorded since."""
        return any(map(self._is_due, self.roots.values()))

    def _is_due(self, site: str) -> bool:
        return self._most > 0 and site not in self._done

    def awaits(self, module: Any) -> bool:
        """Whether a forward in a step that is not recorded matters: it begins, goes on with or ends an evaluation."""
        if module.training and self._has_trained and not self.is_apart:
            return False
        site = self.roots.get(module)
        if site is not None and module.training and not self.is_apart:
            self.train(site)
            return False
        return site is not None and (module.training or self._is_due(site))

    def train(self, site: str) -> None:
        """A root is called in training mode."""
        self._has_trained = True
        self._trained.add(site)

    def may_train(self, site: str) -> bool:
        """Whether a forward in evaluation mode may be one of a training in that mode."""
        return site not in self._trained and self._framework.is_grad_enabled()

    def count(self, site: str, *, limited: bool = True) -> bool:
        """Count a forward in evaluation mode; whether it is read."""
        key = self._key(site)
        self._collector.aside = key[:2]
        is_read = not limited or self.has_room(site)
        read, seen = self._counts.get(key, (0, 0))
        self._counts[key] = read + is_read, seen + 1
        return is_read

    def has_room(self, site: str) -> bool:
        """Whether one more forward of the evaluation would be read."""
        return self._counts.get(self._key(site), (0, 0))[0] < self._most

    def _key(self, site: str) -> Evaluation:
        return Evaluation(self._step if self._has_trained else self._step - 1, site, self._contexts.current)

    def settle(self, *, recorded: bool = False, pending: bool = False, trained: bool = False) -> dict[Evaluation, str]:
        """Decide about the rows that were put aside; how many forwards of each recorded evaluation were read.

        `recorded` says that the step in progress is, `pending` that it may be later, and `trained` that a backward
        ran or an optimizer stepped in it.
        """
        own: list[tuple[int, str]] = []
        apart: list[tuple[int, str]] = []
        for key in self._collector.put_aside():
            step, site = key
            is_evaluation = site in self._trained
            belongs = (recorded or pending) and (step == self._step or not is_evaluation)
            is_wanted = self._is_due(site) and (is_evaluation or not trained)
            if belongs and (recorded or not is_wanted):
                own.append(key)
            elif is_wanted:
                apart.append(key)
        self._collector.settle(own, apart)
        counts, self._counts = self._counts, {}
        self._done = {site for _, site in own} if recorded else self._done | {key.site for key in counts}
        return {
            key: f"{read} of {seen} forwards"
            for key, (read, seen) in counts.items()
            if key[:2] in apart or (recorded and key[:2] in own and (key.site in self._trained or read < seen))
        }

    def end_step(self, step: int) -> None:
        """A step has ended."""
        self._step = step + 1
        self._has_trained = False
