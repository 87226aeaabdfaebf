"""Values kept for when they are needed again, as long as there is room for them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """A dictionary that forgets what was not used for longest when its values grow too large.

    Args:
        limit_bytes: what all values may hold together; the newest stays, however large it is.
        size_bytes: what one holds.
    """

    def __init__(self, limit_bytes: int, size_bytes: Callable[[V], int]) -> None:
        self._limit_bytes, self._size_bytes = limit_bytes, size_bytes
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value, which counts as used, or None."""
        if key not in self._values:
            return None
        value = self._values[key] = self._values.pop(key)
        return value

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value, made if there is none; either way it is the newest then."""
        known = self.get(key)
        value = make() if known is None else known
        self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value as the newest."""
        self._values.pop(key, None)
        self._values[key] = value
        total = sum(map(self._size_bytes, self._values.values()))
        while total > self._limit_bytes and len(self._values) > 1:
            total -= self._size_bytes(self._values.pop(next(iter(self._values))))
