"""The cache that readers, named tensors and the server share."""

from __future__ import annotations

from layerscope.model.lru_cache import LRUCache


def test_the_least_recently_used_value_is_dropped_first() -> None:
    dropped: list[str] = []
    cache: LRUCache[str, str] = LRUCache(2, dropped=dropped.append)
    for key in ("a", "b", "a", "c"):
        assert cache.get(key, key.upper) == key.upper()
    assert dropped == ["B"]
    assert ("a" in cache, "b" in cache, len(cache)) == (True, False, 2)


def test_a_value_that_is_larger_than_the_limit_is_kept_until_the_next_one() -> None:
    cache: LRUCache[int, int] = LRUCache(10, size=lambda value: value)
    cache.put(1, 50)
    assert cache.peek(1) == 50
    cache.put(2, 5)
    assert (cache.peek(1), cache.peek(2)) == (None, 5)


def test_a_limit_of_zero_caches_nothing() -> None:
    cache: LRUCache[int, int] = LRUCache(0)
    assert cache.get(1, lambda: 7) == 7
    assert 1 not in cache


def test_a_value_is_made_again_for_another_version() -> None:
    cache: LRUCache[str, int] = LRUCache(4)
    numbers = iter((1, 2))
    values = [cache.get("key", lambda: next(numbers), version) for version in ("a", "a", "b")]
    assert values == [1, 1, 2]


def test_a_discarded_key_frees_its_size() -> None:
    cache: LRUCache[str, int] = LRUCache(10, size=lambda value: value)
    cache.put("a", 8)
    cache.discard("a")
    cache.put("b", 1)
    cache.put("c", 9)
    assert ("b" in cache, "c" in cache) == (True, True)
