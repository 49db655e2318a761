"""A request and the moves it may make.

Rule 1: every change of state goes through :meth:`Request.move`, which looks it up in ``TRANSITIONS``. The state
diagram in docs/design/states.md is drawn from that table.

Rule 2: while a request is running, its progress lives in the scheduler's columns; the fields here are written
back when it leaves its slot.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from headway.config import SamplingParams
from headway.config.kinds import WrongKind, as_kind
from headway.core.plan import Int32, Int64


class Status(enum.Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    FINISHED = "finished"


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    KV_CAPACITY = "kv_capacity"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.PREEMPTED, Status.SWAPPED, Status.FINISHED}),
    Status.PREEMPTED: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.SWAPPED: frozenset({Status.RUNNING, Status.PREEMPTED, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


class IllegalTransition(RuntimeError):
    """A request was asked to make a move that its state does not allow: a bug in the caller."""


class RequestRefused(ValueError):
    """A request can never be served, or is malformed; nothing was done for it.

    Attributes:
        field: what is wrong with it ("prompt", "request_id", ...).
        value: the number or name given.
        limit: the limit it exceeds, or ``None``.
    """

    def __init__(self, field: str, value: object, limit: int | None, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.value = value
        self.limit = limit


class PromptTooLong(RequestRefused):
    """A prompt that no amount of waiting makes room for; what clients react to by shortening it.

    Args:
        value: its tokens.
        limit: tokens that would fit, with one token of output.
    """

    limit: int

    def __init__(self, value: int, limit: int, message: str) -> None:
        super().__init__("prompt", value, limit, message)

    @staticmethod
    def for_model(num_tokens: int, max_model_len: int) -> PromptTooLong:
        """It leaves no room for an output within the model length."""
        return PromptTooLong(
            num_tokens,
            max_model_len - 1,
            f"the prompt has {num_tokens} tokens; with max_model_len={max_model_len} at most {max_model_len - 1}"
            " leave room for an output",
        )


def token_array(prompt: Sequence[int] | Int32) -> Int32 | Int64:
    """A prompt as an array of its integers, which need not be tokens of any vocabulary.

    Raises:
        RequestRefused: it is no sequence of integers, or has one that no token id can be.
    """
    try:
        ids = np.asarray(prompt)
    except (TypeError, ValueError, OverflowError):
        ids = np.zeros((0, 0))
    holds_truth = isinstance(prompt, Sequence) and bool in set(map(type, prompt))  # NumPy would make numbers of them
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu") or holds_truth:
        raise RequestRefused("prompt", type(prompt).__name__, None, "a prompt is text or a list of token ids")
    return ids


class Request:
    """One generation, from arrival to its end.

    Args:
        request_id: the client's name; unique among unfinished requests.
        prompt: token ids, at least one.
        sampling: how to choose tokens and when to stop.
        eos_token_ids: ids that end the output unless ``sampling.ignore_eos``.
        priority: smaller is more urgent; only the priority policy looks at it.
        cache_salt: requests share cached prefixes only within one salt.
        tenant: who asks, for the fair policy.
        deadline_s: seconds after arrival by which it should be served, for the deadline policy.
        slo: a class of deadlines instead (``policies.SLO_CLASSES``).

    Raises:
        RequestRefused: a value of the wrong kind, by the name of its argument.
    """

    __slots__ = (
        "arrival_s",
        "block_hashes",
        "cache_salt",
        "deadline_s",
        "eos_token_ids",
        "finish_reason",
        "handle",
        "hash_root",
        "host_tables",
        "num_cached_tokens",
        "num_lost_tokens",
        "num_overtaken",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_at_preemption",
        "num_swapped_tokens",
        "order_key",
        "priority",
        "request_id",
        "sampling",
        "slo",
        "status",
        "tenant",
        "tokens",
    )

    def __init__(
        self,
        request_id: str,
        prompt: Sequence[int] | Int32,
        sampling: SamplingParams,
        *,
        eos_token_ids: Sequence[int] = (),
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        deadline_s: float | None = None,
        slo: str = "",
    ) -> None:
        self.request_id: str = _of_kind("request_id", str, request_id)
        self.tokens: Int32 = _int32(token_array(prompt))
        self.num_prompt_tokens = len(self.tokens)
        self.sampling: SamplingParams = _of_kind("sampling", SamplingParams, sampling)
        self.eos_token_ids: tuple[int, ...] = _of_kind("eos_token_ids", tuple[int, ...], eos_token_ids)
        self.priority: int = _of_kind("priority", int, priority)
        self.cache_salt: str = _of_kind("cache_salt", str, cache_salt)
        self.tenant: str = _of_kind("tenant", str, tenant)
        self.deadline_s: float | None = _of_kind("deadline_s", float | None, deadline_s)
        self.slo: str = _of_kind("slo", str, slo)
        self.arrival_s = 0.0
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.handle = -1
        self.order_key: tuple[int, float, int] = (0, 0.0, -1)
        self.hash_root = b""
        self.block_hashes: list[bytes] = []
        self.host_tables: tuple[Int32, ...] = ()
        self.num_swapped_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_lost_tokens = 0
        self.num_overtaken = 0
        self.num_published_at_preemption = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and delivered output (as of the last time the request left its slot)."""
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        """Delivered output tokens (as of the last time the request left its slot)."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def queue_key(self) -> tuple[int, bool, float, int]:
        """Its place in the waiting queue: within a class, swapped requests come first."""
        urgency, rank, handle = self.order_key
        return (urgency, self.status is not Status.SWAPPED, rank, handle)

    @property
    def ending_token_ids(self) -> tuple[int, ...]:
        """Ids that end the output, end-of-text first (unless ignored), then the client's stop ids."""
        return self.end_of_text_ids + self.sampling.stop_token_ids

    @property
    def end_of_text_ids(self) -> tuple[int, ...]:
        """Ids that end the output as the model's own end, not as a stop that the client named."""
        return () if self.sampling.ignore_eos else self.eos_token_ids

    @property
    def takes_hits(self) -> bool:
        """Whether it may start from cached KV: prompt log probabilities need every prompt token computed."""
        return self.sampling.prompt_logprobs is None

    def move(self, status: Status) -> None:
        """Change state; raise :class:`IllegalTransition` if the table does not allow it."""
        if status not in TRANSITIONS[self.status]:
            raise IllegalTransition(f"request {self.request_id!r}: {self.status.value} -> {status.value}")
        self.status = status

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, {self.status.value}, {self.num_prompt_tokens}+{self.num_output_tokens})"


def _of_kind(name: str, kind: Any, value: Any) -> Any:
    """The value of an argument, in the one form of its kind."""
    try:
        value = as_kind(kind, value)
        if isinstance(value, str):
            value.encode()
    except WrongKind as wrong:
        raise RequestRefused(name, value, None, f"{name}={value!r} is not usable: {wrong}") from None
    except UnicodeEncodeError:
        raise RequestRefused(name, value, None, f"{name}={value!r} is not usable: must be valid Unicode") from None
    return value


def _int32(ids: Int32 | Int64) -> Int32:
    """A copy with the type of all token arrays."""
    outside = (ids < 0) | (ids > np.iinfo(np.int32).max)
    if outside.any():
        token = int(ids[np.argmax(outside)])
        raise RequestRefused("prompt", token, np.iinfo(np.int32).max, f"no token id can be {token}")
    return np.array(ids, np.int32)
