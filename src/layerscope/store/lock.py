"""Locks that the operating system releases when the process ends."""

from __future__ import annotations

import importlib.util
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from layerscope.errors import StoreError

LOCKS = importlib.util.find_spec("fcntl") is not None  # Windows lacks it: runs can be read there, not written
if LOCKS:
    import fcntl

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if LOCKS else 0  # follows no link and does not block on a pipe
_PATIENCE_S = 0.3  # longer than `is_held` holds the lock
_PAUSE_S = 0.01


class FileLock:
    """An exclusive lock on a file, held until `release` or the end of the process.

    A forked child closes its copy, so that a data-loader worker that outlives a killed training does
    not keep the run locked.
    """

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle
        mine = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _abandon(mine()))

    @staticmethod
    def take(path: Path, patience_s: float = _PATIENCE_S) -> FileLock | None:
        """The lock, or None if another process holds it."""
        if not LOCKS:
            raise StoreError(f"{path} cannot be locked on this system. Record on Linux or macOS; read runs anywhere.")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}. Choose a folder you can write to.") from None
        until = time.monotonic() + patience_s
        locked = False
        try:
            while not (locked := _try(handle, fcntl.LOCK_EX, path)) and time.monotonic() < until:
                time.sleep(_PAUSE_S)
        finally:
            if not locked:
                os.close(handle)
        return FileLock(handle) if locked else None

    def write(self, content: bytes) -> None:
        """Writes the owner into the lock file."""
        assert self._handle is not None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, content, 0)

    def release(self) -> None:
        """Releases the lock; may be called twice."""
        if self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
            self.abandon()

    def abandon(self) -> None:
        """Closes the handle of a forked child; the parent keeps the lock."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def _abandon(lock: FileLock | None) -> None:
    if lock is not None:
        lock.abandon()


def _try(handle: int, how: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be locked: {error.strerror}. Record to a local disk.") from None
    return True


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """A `with` block under an exclusive lock on a file; waits for other processes."""
    handle = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child forked meanwhile has the handle too, so closing is not enough
    finally:
        os.close(handle)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock. Holds the lock for an instant itself, so `take` retries."""
    if not LOCKS:
        return False
    try:
        handle = os.open(path, os.O_RDONLY | _FLAGS)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}. Check its permissions.") from None
    try:
        return not _try(handle, fcntl.LOCK_SH, path)
    finally:
        os.close(handle)
