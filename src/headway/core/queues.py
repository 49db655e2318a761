"""Two sorted sequences in policy order: the requests that wait, and the slots of those that run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import numpy as np

from headway.core.plan import Int32
from headway.core.policies import OrderKey
from headway.core.request import Request, Status


class WaitingQueue:
    """Live requests without a slot, in policy order, swapped ones first within a class.

    Keys are unique, so every look-up is one bisection. They are those that requests had when they came or were ranked.
    """

    def __init__(self) -> None:
        self._keys: list[tuple[int, bool, float, int]] = []
        self._requests: list[Request] = []
        self.num_swapped = 0

    def add(self, request: Request) -> None:
        """Enter a request at its place."""
        place = bisect_left(self._keys, request.queue_key)
        self._keys.insert(place, request.queue_key)
        self._requests.insert(place, request)
        self.num_swapped += request.status is Status.SWAPPED

    def remove(self, request: Request) -> None:
        """Take a request out; it must be there."""
        self.pop(self.position(request))

    def pop(self, place: int) -> Request:
        """Take out the request at ``place``; its state may have changed already."""
        _, not_swapped, _, _ = self._keys.pop(place)
        self.num_swapped -= not not_swapped
        return self._requests.pop(place)

    def rebuild(self, requests: Iterable[Request]) -> None:
        """Hold just these, in order."""
        self._requests = sorted(requests, key=attrgetter("queue_key"))
        self._keys = [request.queue_key for request in self._requests]
        self.num_swapped = sum(request.status is Status.SWAPPED for request in self._requests)

    def rerank(self, ranks: Sequence[float]) -> None:
        """Give every request a new rank, in the order of the queue, and its new place."""
        for request, rank in zip(self._requests, ranks, strict=True):
            request.order_key = (request.order_key[0], rank, request.handle)
        self._requests.sort(key=lambda request: request.queue_key)
        self._keys = [request.queue_key for request in self._requests]

    def position(self, request: Request) -> int:
        """How many requests wait before it; raises ``KeyError`` if it does not wait."""
        place = bisect_left(self._keys, request.queue_key)
        if place == len(self._keys) or self._keys[place] != request.queue_key:
            raise KeyError(request.request_id)
        return place

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, place: int) -> Request:
        return self._requests[place]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class RowOrder:
    """Slots of the running requests in policy order, as an array for the columns and a key list for bisection.

    ``slots`` is replaced, never changed in place: whoever took it keeps a consistent snapshot.
    """

    def __init__(self) -> None:
        self._keys: list[OrderKey] = []
        self.slots: Int32 = np.zeros(0, np.int32)

    def add(self, key: OrderKey, slot: int) -> None:
        """Enter a slot at its place."""
        place = bisect_left(self._keys, key)
        self._keys.insert(place, key)
        if place == len(self.slots):
            self.slots = np.append(self.slots, np.int32(slot))
        else:
            self.slots = np.insert(self.slots, place, slot)

    def remove(self, keys: Sequence[OrderKey]) -> None:
        """Take rows out by key; all must be there."""
        places = sorted(bisect_left(self._keys, key) for key in keys)
        for place in reversed(places):
            del self._keys[place]
        self.slots = np.delete(self.slots, places)

    def rebuild(self, rows: Iterable[tuple[OrderKey, int]]) -> None:
        """Hold just these, given with their slots, in order."""
        ordered = sorted(rows)
        self._keys = [key for key, _ in ordered]
        self.slots = np.array([slot for _, slot in ordered], np.int32)

    @property
    def keys(self) -> Sequence[OrderKey]:
        """Keys, place by place with ``slots``."""
        return self._keys

    def __len__(self) -> int:
        return len(self._keys)
