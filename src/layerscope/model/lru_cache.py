"""A cache of bounded size that drops the least recently used values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Values by key. Beyond `limit` it drops the least recently used ones, but never the newest. Threads may share it.

    `size` tells how much of the limit a value takes, 1 by default. `dropped` is called with each dropped value. A limit
    of 0 caches nothing.
    """

    def __init__(
        self,
        limit: int,
        size: Callable[[Value], int] = lambda _: 1,
        dropped: Callable[[Value], object] = lambda _: None,
    ) -> None:
        self._limit, self._size, self._dropped = limit, size, dropped
        self._entries: OrderedDict[Key, tuple[Value, object, int]] = OrderedDict()  # value, version, size
        self._total = 0
        self._lock = threading.RLock()  # a weak reference may discard its key while the lock is held

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, make: Callable[[], Value], version: object = None) -> Value:
        """The value of a key, made now if it is not cached or was made for another version."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry[1] == version:
                self._entries.move_to_end(key)
                return entry[0]
        value = make()
        self.put(key, value, version)
        return value

    def peek(self, key: Key) -> Value | None:
        """The value of a key if it is cached; does not count as a use."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: Key, value: Value, version: object = None) -> None:
        """Cache a value as the most recently used one."""
        size = self._size(value)
        with self._lock:
            self.discard(key)
            self._entries[key] = (value, version, size)
            self._total += size
            while self._total > self._limit and len(self._entries) > min(self._limit, 1):
                oldest, _, freed = self._entries.popitem(last=False)[1]
                self._total -= freed
                self._dropped(oldest)

    def discard(self, key: Key) -> None:
        """Forget a key."""
        with self._lock:
            entry = self._entries.pop(key, None)
            self._total -= 0 if entry is None else entry[2]
