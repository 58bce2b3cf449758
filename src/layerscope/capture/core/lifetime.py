"""How long a recorder lives: what keeps it alive, when it may be closed, and what a forked process does with it."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from functools import cache
from types import FrameType

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
