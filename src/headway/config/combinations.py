"""Options of several parts together: what makes each other impossible, and what makes less of each other.

What can never work is refused when an engine starts, not when the first long request comes. What works, but leaves an
option without much use, is said among the engine's limits.
"""

from __future__ import annotations

import dataclasses

from headway.config.options import ConfigError
from headway.config.scheduler import CacheConfig, SchedulerConfig
from headway.config.server import ServerOptions


def tokens_that_fit(cache: CacheConfig) -> int:
    """Tokens of the longest sequence that the KV blocks hold if it has all of them."""
    return cache.num_blocks // cache.num_groups * cache.block_size


def check_fits(scheduler: SchedulerConfig, cache: CacheConfig) -> None:
    """Raise :class:`ConfigError` unless the longest sequence allowed can run when it is alone."""
    fitting = tokens_that_fit(cache)
    if scheduler.max_model_len > fitting:
        limit = f"must be at most {fitting}, the tokens that {cache.num_blocks} KV blocks of {cache.block_size} hold"
        raise ConfigError("max_model_len", scheduler.max_model_len, limit)


def tight_limits(scheduler: SchedulerConfig, cache: CacheConfig) -> tuple[str, ...]:
    """A sentence for every option of which other options leave less than was asked for."""
    found = (_slots(scheduler, cache), _queue(scheduler), _watermark(scheduler, cache), _swap_space(scheduler, cache))
    return tuple(f"note: {sentence}" for sentence in found if sentence)


def server_options(options: ServerOptions, scheduler: SchedulerConfig, cache: CacheConfig) -> ServerOptions:
    """The server's options as far as the engine allows: no call may ask for more than the queue ever lets in.

    Raises:
        ConfigError: an option that has no effect with this engine.
    """
    check_server(options, enable_prefix_caching=cache.enable_prefix_caching)
    most = scheduler.max_num_queued_reqs
    if not most or most >= options.max_sequences:  # 0 lets nobody in, now
        return options
    return dataclasses.replace(options, max_sequences=most, max_n=min(options.max_n, most))


def check_server(options: ServerOptions, *, enable_prefix_caching: bool) -> None:
    """Raise :class:`ConfigError` for an option of the server that has no effect with such an engine."""
    if options.cache_isolation and not enable_prefix_caching:
        raise ConfigError("cache_isolation", True, "has no effect without enable_prefix_caching")


def _slots(scheduler: SchedulerConfig, cache: CacheConfig) -> str:
    most = cache.num_blocks // cache.num_groups
    if scheduler.max_num_seqs <= most:
        return ""
    return f"max_num_seqs is {scheduler.max_num_seqs:,}, but {most:,} KV blocks hold at most as many requests"


def _queue(scheduler: SchedulerConfig) -> str:
    limit = scheduler.max_num_queued_reqs
    if limit is None or limit >= scheduler.max_num_seqs:
        return ""
    if limit == 0:
        return "max_num_queued_reqs is 0: a server lets nobody in"
    slots = scheduler.max_num_seqs
    return f"max_num_queued_reqs is {limit:,}: a server never fills max_num_seqs ({slots:,}), since running ones count"


def _watermark(scheduler: SchedulerConfig, cache: CacheConfig) -> str:
    kept = int(scheduler.watermark * cache.num_blocks)
    beside = (cache.num_blocks - kept) // cache.num_groups * cache.block_size
    if beside >= scheduler.max_model_len:
        return ""
    return f"watermark is {scheduler.watermark:g}: a prompt above {beside:,} tokens starts only while nothing runs"


def _swap_space(scheduler: SchedulerConfig, cache: CacheConfig) -> str:
    fitting = cache.num_host_blocks // cache.num_groups * cache.block_size
    if not cache.num_host_blocks or fitting >= scheduler.max_model_len:
        return ""
    return (
        f"the swap space holds sequences of at most {fitting:,} tokens; longer ones that are preempted are recomputed"
    )
