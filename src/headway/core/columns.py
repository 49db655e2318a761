"""The batch as a table: one line per slot, one NumPy array per column.

All counters are in tokens unless named otherwise. For a row::

    0 ........ published*bs ....... settled ......... computed ......... target
    |  findable by prefix  |  has KV  |  in flight, KV  |  want: to be   |
    |                      |          |  being written  |  scheduled     |

    settled = computed - inflight        target = known + placeholders

A slot is free, running, or draining (its request ended while steps that touch it are in flight).
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from headway.config import CacheConfig, SchedulerConfig
from headway.core.plan import Bool, Int32, Int64
from headway.core.request import Request

NO_TOKEN = -1


class Columns:
    """State of all slots. Whoever changes a column keeps the invariants of ``core/invariants.py``."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        slots = config.max_num_seqs
        width = -(-config.max_model_len // cache.block_size)
        self.known: Int32 = np.zeros(slots, np.int32)
        self.computed: Int32 = np.zeros(slots, np.int32)
        self.inflight: Int32 = np.zeros(slots, np.int32)
        self.placeholders: Int32 = np.zeros(slots, np.int32)
        self.frames: Int32 = np.zeros(slots, np.int32)
        """Steps in flight that touch the slot."""
        self.held: Int32 = np.zeros(slots, np.int32)
        """Blocks in each of the row's tables."""
        self.published: Int32 = np.zeros(slots, np.int32)
        """Leading blocks that are in the prefix index or were offered to it."""
        self.end_len: Int32 = np.zeros(slots, np.int32)
        """Known length at which the request ends by length."""
        self.min_len: Int32 = np.zeros(slots, np.int32)
        """Known length below which no token ends the request."""
        self.urgency: Int64 = np.zeros(slots, np.int64)
        """Class of the order key."""
        self.handle: Int64 = np.zeros(slots, np.int64)
        self.protected: Bool = np.zeros(slots, np.bool_)
        """Resumed and without a delivered token since."""
        self.tenant: Int32 = np.zeros(slots, np.int32)
        """Index into ``tenants``."""
        self.tenants: list[str] = []
        self._tenant_index: dict[str, int] = {}
        self.shares: Bool = np.zeros(slots, np.bool_)
        """Whether its full blocks are offered to the prefix index."""
        self.draining: Bool = np.zeros(slots, np.bool_)
        self.reason: npt.NDArray[np.int8] = np.zeros(slots, np.int8)
        """Why the row was not served in the last step; 0 if it was (see ``core/reasons.py``)."""
        self.stop_ids: Int32 = np.full((slots, 1), NO_TOKEN, np.int32)
        """Tokens that end the request, padded with ``NO_TOKEN``."""
        # empty, not zeros: untouched pages of these two wide tables cost no memory
        self.tokens: Int32 = np.empty((slots, config.max_model_len), np.int32)
        self.tables: tuple[Int32, ...] = tuple(np.empty((slots, width), np.int32) for _ in range(cache.num_groups))
        self.requests: list[Request | None] = [None] * slots
        self.block_hashes: list[list[bytes]] = [[] for _ in range(slots)]
        """The requests' own lists, at hand without going through the requests."""
        self.num_hashes: Int32 = np.zeros(slots, np.int32)
        """Their lengths."""
        self._free_slots = list(range(slots))
        self.num_draining = 0

    @property
    def num_free_slots(self) -> int:
        """Slots that are neither running nor draining."""
        return len(self._free_slots)

    def request(self, slot: int) -> Request:
        """The request in a slot; it must be occupied."""
        request = self.requests[slot]
        if request is None:
            raise LookupError(f"slot {slot} is free")
        return request

    def enter(self, request: Request, max_model_len: int) -> int:
        """Put a request into the smallest free slot; computed, held and published are left to the caller."""
        slot = heapq.heappop(self._free_slots)
        sampling = request.sampling
        known = request.num_tokens
        self.requests[slot] = request
        self.block_hashes[slot] = request.block_hashes
        self.num_hashes[slot] = len(request.block_hashes)
        self.handle[slot] = request.handle
        self.urgency[slot] = request.order_key[0]
        self.tokens[slot, :known] = request.tokens
        self.known[slot] = known
        self.inflight[slot] = self.placeholders[slot] = self.frames[slot] = 0
        self.protected[slot] = request.num_preemptions > 0
        self.shares[slot] = request.takes_hits
        self.tenant[slot] = self._index_of(request.tenant)
        self.draining[slot] = False
        self.reason[slot] = 0
        limit = max_model_len if sampling.max_tokens is None else request.num_prompt_tokens + sampling.max_tokens
        self.end_len[slot] = min(limit, max_model_len)
        self.min_len[slot] = request.num_prompt_tokens + sampling.min_tokens
        self._set_stop_ids(slot, request)
        return slot

    def _index_of(self, tenant: str) -> int:
        index = self._tenant_index.setdefault(tenant, len(self.tenants))
        if index == len(self.tenants):
            self.tenants.append(tenant)
        return index

    def _set_stop_ids(self, slot: int, request: Request) -> None:
        ids = request.ending_token_ids
        missing = len(ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, missing)), constant_values=NO_TOKEN)
        self.stop_ids[slot] = NO_TOKEN
        self.stop_ids[slot, : len(ids)] = ids

    def leave(self, slot: int) -> None:
        """Make a slot free."""
        self.requests[slot] = None
        self.held[slot] = 0
        if self.draining[slot]:
            self.draining[slot] = False
            self.num_draining -= 1
        heapq.heappush(self._free_slots, slot)

    def drain(self, slot: int) -> None:
        """Keep an ended request's slot until the steps that touch it have returned."""
        self.draining[slot] = True
        self.num_draining += 1

    def vacate(self, slot: int) -> None:
        """Take a request out of its slot without a word to anybody; :meth:`recount` must follow."""
        self.requests[slot] = None
        self.held[slot] = 0
        self.draining[slot] = False

    def recount(self) -> None:
        """Find out anew which slots are free and how many are draining."""
        self._free_slots = [slot for slot, request in enumerate(self.requests) if request is None]
        self.num_draining = int(np.count_nonzero(self.draining))

    def block_ids(self, slot: int) -> tuple[Int32, ...]:
        """Per group, the row's block table: int32[held], a view."""
        held = self.held[slot]
        return tuple(table[slot, :held] for table in self.tables)
