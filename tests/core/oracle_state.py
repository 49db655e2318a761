"""What the oracle of tests/core/oracle.py works on, and everything but its ``schedule``: requests come and go, results
come back. Lists and dicts, one request and one block at a time.
"""

from __future__ import annotations

from math import ceil

from headway.config import CacheConfig, SchedulerConfig
from headway.core.request import FinishReason, Request
from tests.core.oracle_entry import Content, Entry, OraclePool, Places
from tests.core.oracle_policy import OraclePolicy


class OracleState:
    """Requests, blocks and counters of the oracle."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig) -> None:
        self.config, self.cache = config, cache
        self.groups, self.size = cache.num_groups, cache.block_size
        self.pool, self.host = OraclePool(cache.num_blocks), OraclePool(cache.num_host_blocks)
        self.policy = OraclePolicy(config)
        self.live: dict[str, Entry] = {}
        self.draining: list[Entry] = []
        self.served: list[Entry] = []
        self.released: list[int] = []
        self.host_releases: list[Places] = []
        self.finished: list[tuple[str, str, list[int]]] = []
        self.output_lengths: list[int] = []
        self.num_added = 0
        self.steps_since_prefill: int | None = None

    def add(self, request: Request, now: float) -> bool:
        """Whether the request was taken."""
        prompt = request.tokens.tolist()
        if not 0 < len(prompt) < self.config.max_model_len or request.request_id in self.live:
            return False
        if self.groups * ceil((len(prompt) + 1) / self.size) > self.cache.num_blocks:
            return False
        self.num_added += 1
        entry = Entry(request, self.num_added, now, prompt, [[] for _ in range(self.groups)])
        self.policy.arrives(entry, [other for other in self.live.values() if other.slot is None])
        self.live[entry.name] = entry
        return True

    def abort(self, name: str) -> None:
        if name in self.live:
            self.finish(self.live[name], FinishReason.ABORT)
            self.free_host_blocks()

    def finish(self, entry: Entry, reason: FinishReason) -> None:
        self.finished.append((entry.name, reason.value, list(entry.tokens)))
        del self.live[entry.name]
        entry.done = True
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.output_lengths = [*self.output_lengths, self.num_outputs(entry)][-1000:]
        if entry.swapped:
            self.leave_host(entry)
        if entry.in_flight:
            self.draining.append(entry)
        elif entry.slot is not None:
            self.leave_slot(entry)

    def leave_slot(self, entry: Entry) -> None:
        assert entry.slot is not None
        self.pool.free(entry.blocks())
        self.released.append(entry.slot)
        entry.slot, entry.tables = None, [[] for _ in entry.tables]

    def leave_host(self, entry: Entry) -> None:
        """Its host blocks go back when the step in the making has read them."""
        self.host_releases.append(entry.host)
        entry.swapped, entry.host = False, {}

    def free_host_blocks(self) -> None:
        """One request's blocks after the other, last index first, group by group within an index."""
        for places in self.host_releases:
            self.host.free([places[at] for at in sorted(places, key=lambda at: (-at[1], at[0]))])
        self.host_releases = []

    def num_outputs(self, entry: Entry) -> int:
        return len(entry.tokens) - entry.request.num_prompt_tokens

    def longest(self, entry: Entry) -> int:
        """Tokens at which it ends at the latest."""
        most = entry.request.sampling.max_tokens
        length = self.config.max_model_len
        return length if most is None else min(length, entry.request.num_prompt_tokens + most)

    def rows(self) -> list[Entry]:
        return sorted((entry for entry in self.live.values() if entry.slot is not None), key=lambda entry: entry.key)

    def content(self, entry: Entry, index: int) -> Content:
        return entry.request.cache_salt, tuple(entry.tokens[: (index + 1) * self.size])

    def shares(self, entry: Entry) -> bool:
        return self.cache.enable_prefix_caching and entry.request.sampling.prompt_logprobs is None

    def update(self, sampled: list[int | None], failed: set[int]) -> list[tuple[str, int]]:
        """Take in one token (or None) per row of the plan; what is delivered."""
        served, self.served = self.served, []
        delivered, ended = [], []
        for row in served:
            row.in_flight = False
            if row.done:
                self.draining.remove(row)
                self.leave_slot(row)
        for number, row in enumerate(served):
            if number in failed and not row.done:
                self.finish(row, FinishReason.ERROR)
        for row, token in zip(served, sampled, strict=True):
            if not row.done and token is not None:
                row.tokens.append(token)
                row.protected = False
                delivered.append((row.name, token))
                self.policy.delivered(row)
                ended += [(row, reason) for reason in self.reasons_to_stop(row)[:1]]
        for row in served:
            while not row.done and self.shares(row) and row.published < row.computed // self.size:
                for group, table in enumerate(row.tables):
                    self.pool.publish(group, self.content(row, row.published), table[row.published])
                row.published += 1
        for row, reason in ended:
            self.finish(row, reason)
        return delivered

    def reasons_to_stop(self, row: Entry) -> list[FinishReason]:
        sampling, token = row.request.sampling, row.tokens[-1]
        num_outputs = self.num_outputs(row)
        reasons = []
        if num_outputs >= sampling.min_tokens:
            if token in row.request.eos_token_ids and not sampling.ignore_eos:
                reasons.append(FinishReason.STOP)
            if token in sampling.stop_token_ids:
                reasons.append(FinishReason.STOP)
        if len(row.tokens) == self.longest(row):
            reasons.append(FinishReason.LENGTH)
        return reasons
