"""Work that waits until nobody asks for anything."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from layerscope.server.background import IDLE_S, IdleWorker


def test_work_is_done_when_it_is_quiet_and_of_one_name_only_the_last() -> None:
    quiet, done = IdleWorker(), queue.Queue[tuple[str, float]]()

    def tell(name: str) -> None:
        done.put((name, time.monotonic()))

    for name in ("first", "second", "third"):
        asked_s = time.monotonic()
        quiet.later("answer", partial(tell, name))
    name, done_s = done.get(timeout=30)
    assert name == "third"
    assert done_s >= asked_s + IDLE_S
    quiet.later("another", partial(tell, "fourth"))
    assert done.get(timeout=30)[0] == "fourth"
    quiet.close()


def test_work_that_fails_is_told_of_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    quiet, done = IdleWorker(), queue.Queue[str]()
    quiet.later("broken", lambda: 1 / 0)
    quiet.later("whole", lambda: done.put("done"))
    assert done.get(timeout=30) == "done"
    assert "division by zero" in caplog.text
    quiet.close()


def test_a_process_that_ends_meanwhile_says_nothing_of_it() -> None:
    program = """
import threading
from concurrent.futures import ThreadPoolExecutor
from layerscope.server.background import IdleWorker
begun, pool = threading.Event(), ThreadPoolExecutor(1)
def work():
    begun.set()
    while True:
        pool.submit(int).result()
IdleWorker().later("answer", work)
begun.wait(30)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stderr == ""


def test_work_that_fails_because_the_process_ends_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    quiet, begun, closed = IdleWorker(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        closed.wait(30)
        raise RuntimeError("cannot schedule new futures after shutdown")

    quiet.later("answer", work)
    thread = quiet._thread
    assert begun.wait(30)
    quiet.close()
    closed.set()
    assert thread is not None
    thread.join(timeout=30)
    assert caplog.text == ""


def test_nothing_is_done_after_it_was_closed() -> None:
    quiet, done = IdleWorker(), list[str]()
    quiet.later("answer", lambda: done.append("late"))
    thread = quiet._thread
    quiet.close()
    assert thread is not None
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert done == []
