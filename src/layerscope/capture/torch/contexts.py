"""Contexts: the names a training loop gives to forwards of one step that mean different things."""

from __future__ import annotations

import threading
from bisect import bisect_right

import torch

_next_node = torch._C._autograd._get_sequence_nr  # what autograd will number the next node of this thread


State = tuple[str, bool]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.current = ""
        self.is_again = False  # whether that is the context of a forward which a backward computes again
        self.step = -1
        self.left: list[tuple[int, str]] = []  # contexts of the step: which nodes were made before it was left


class Contexts:
    """The context of each thread, and those of the nodes of the autograd graph that a recorded step has made."""

    def __init__(self) -> None:
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
        if thread.is_again or torch._C._current_graph_task_id() == -1:
            return thread.current
        node = torch._C._current_autograd_node()
        if node is None or thread.step != self._step:
            return thread.current
        place = bisect_right(thread.left, node._sequence_nr(), key=lambda left: left[0])
        return thread.left[place][1] if place < len(thread.left) else thread.current

    def enter(self, name: str) -> State:
        """Go to a context inside the present one, or, without a name, to that one; the result is for `leave`."""
        thread, around = self._thread, self.current
        state = thread.current, thread.is_again
        thread.is_again = torch._C._current_graph_task_id() != -1
        self._change(thread, (f"{around}/{name}" if around else name) if name else around)
        return state

    def leave(self, state: State) -> None:
        """Go back to where a context was entered."""
        thread = self._thread
        context, thread.is_again = state
        self._change(thread, context)

    def _change(self, thread: _Thread, context: str) -> None:
        if self.is_followed:
            if thread.step != self._step:
                thread.step = self._step
                thread.left.clear()
            thread.left.append((_next_node(), thread.current))
        thread.current = context


class Within:
    """The `with` block of a context; cheap, for it is entered in idle steps too."""

    __slots__ = ("_contexts", "_left", "_name")

    def __init__(self, contexts: Contexts, name: str) -> None:
        self._contexts = contexts
        self._name = name
        self._left: list[State] = []

    def __enter__(self) -> None:
        self._left.append(self._contexts.enter(self._name))

    def __exit__(self, *exception: object) -> None:
        self._contexts.leave(self._left.pop())
