"""Options of the scheduler and of the KV memory it hands out."""

from __future__ import annotations

from dataclasses import dataclass

from headway.config.options import Checked, ConfigError, option


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(Checked):
    """What one scheduling step may do.

    ``max_num_batched_tokens >= max_num_seqs`` is required: with it, every running request can always be given
    one token, so neither decodes nor prompt chunks can starve (docs/design/step.md, rule 3).
    """

    max_num_seqs: int = option(128, help="Requests that may run at the same time.", unit="requests", minimum=1)
    max_num_batched_tokens: int = option(
        2048, help="Token budget of one step, shared by decodes and prompt chunks.", unit="tokens", minimum=1
    )
    max_model_len: int = option(8192, help="Longest sequence, prompt and output together.", unit="tokens", minimum=2)
    enable_chunked_prefill: bool = option(
        True, help="Cut long prompts into chunks that share steps with decodes; off means whole or not at all."
    )
    scheduling_policy: str = option(
        "fcfs",
        help="Order in which requests are served: fcfs, priority, shortest, longest_prefix, deadline, fair, or one"
        " that was registered.",
    )
    ageing_s: float | None = option(
        None,
        help="Seconds of waiting after which shortest and longest_prefix let nobody overtake any more, and which make"
        " a request one step more urgent under priority. None takes the policy's default; 0 turns ageing off.",
        unit="seconds",
        minimum=0.0,
    )
    watermark: float = option(
        0.0,
        help="Share of the KV blocks that admissions leave free while something runs.",
        minimum=0.0,
        maximum=0.99,
    )
    prefill_schedule_interval: int = option(
        1, help="At most one step in this many carries prompt chunks while requests decode.", unit="steps", minimum=1
    )
    reservation: str = option(
        "prompt",
        help="Blocks that must be free before a request starts: those of its first chunk (nothing), of its prompt, of"
        " prompt and max_tokens after everybody else's (all), or the peak predicted from recent output lengths.",
        choices=("nothing", "prompt", "all", "predicted"),
    )
    max_overtakes: int = option(
        0,
        help="How often later requests may start before the head of the queue while it waits for blocks.",
        unit="requests",
        minimum=0,
    )
    preemption_mode: str = option(
        "auto",
        help="How a preempted request keeps its progress: recompute it, swap its KV to host memory, or whichever is"
        " predicted to be cheaper (auto; without host blocks that is recompute).",
        choices=("auto", "recompute", "swap"),
    )
    victim: str = option(
        "newest",
        help="Who gives way among requests of the least urgent class: the last in policy order, or the one whose"
        " preemption is predicted to cost least.",
        choices=("newest", "cheapest"),
    )
    long_prefill_token_threshold: int = option(
        0,
        help="A request that wants more tokens than this is long: it gets at most this many a step while others"
        " are there, and all long ones together at most half of what decodes leave. 0 turns the cap off.",
        unit="tokens",
        minimum=0,
    )
    max_num_queued_reqs: int | None = option(
        None, help="The server refuses requests while this many are unfinished.", unit="requests", minimum=0
    )
    max_num_queued_tokens: int | None = option(
        None, help="The server refuses requests while this many prompt tokens are in prefill.", unit="tokens", minimum=0
    )

    def check(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"must be at least max_num_seqs ({self.max_num_seqs}), or a running request could be left"
                " without its one token",
            )
        if not self.enable_chunked_prefill:
            if self.max_num_batched_tokens < self.max_model_len:
                raise ConfigError(
                    "max_num_batched_tokens",
                    self.max_num_batched_tokens,
                    f"must be at least max_model_len ({self.max_model_len}) when enable_chunked_prefill is off,"
                    " or a long prompt could never run",
                )
            if self.long_prefill_token_threshold:
                raise ConfigError(
                    "long_prefill_token_threshold",
                    self.long_prefill_token_threshold,
                    "has no effect when enable_chunked_prefill is off; leave it at 0",
                )
        threshold = self.long_prefill_token_threshold
        if threshold >= min(self.max_num_batched_tokens, self.max_model_len) and threshold:
            raise ConfigError(
                "long_prefill_token_threshold",
                threshold,
                f"has no effect unless it is below max_num_batched_tokens ({self.max_num_batched_tokens}) and"
                f" max_model_len ({self.max_model_len})",
            )


@dataclass(frozen=True, kw_only=True)
class CacheConfig(Checked):
    """The paged KV memory: one pool of equally large blocks serves all cache groups."""

    block_size: int = option(16, help="Tokens in one KV block.", unit="tokens", minimum=1)
    num_blocks: int = option(
        1024, help="KV blocks that requests can use (the null block comes on top).", unit="blocks", minimum=1
    )
    enable_prefix_caching: bool = option(True, help="Reuse the KV of equal prompt prefixes.")
    num_host_blocks: int = option(
        0, help="KV blocks in host memory for swapped requests; 0 turns swapping off.", unit="blocks", minimum=0
    )
    num_groups: int = option(
        1, help="Cache groups, each with its own block table per request.", unit="groups", minimum=1, flag=False
    )
