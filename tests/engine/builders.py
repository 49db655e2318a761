"""Engines without a model, with named defaults: a tokenizer of bytes, and executors that say what they are told."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headway.config import CacheConfig, SamplingParams, SchedulerConfig
from headway.core.logprobs import PromptLogprobs, TokenLogprobs
from headway.core.plan import StepPlan, StepResult
from headway.core.scheduler import Scheduler
from headway.engine.engine import Engine
from headway.engine.loop import EngineLoop
from headway.engine.processor import OutputProcessor
from headway.engine.trace import TraceWriter
from headway.models.loading import ChatTemplateError
from headway.sim.fake import FakeExecutor

BOS, EOS, VOCAB_SIZE = 256, 257, 300

_SCHEDULER_FIELDS = {spec.name for spec in dataclasses.fields(SchedulerConfig)}


class ByteTokenizer:
    """Every byte is a token; ids from 258 on are the given pieces.

    Args:
        pieces: more tokens, as bytes.
        bos: whether ``encode`` begins with the beginning-of-text token.
    """

    name = "bytes"
    eos_token_ids = (EOS,)
    special_token_ids = frozenset({BOS, EOS})
    chat_template = "{% for message in messages %}"

    def __init__(self, pieces: Sequence[bytes] = (), *, bos: bool = False) -> None:
        self.bos_token_id = BOS if bos else None
        self._table = [bytes([value]) for value in range(256)] + [b"<s>", b"</s>", *pieces]
        self.vocab_size = len(self._table)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        start = [BOS] if add_special_tokens and self.bos_token_id is not None else []
        return start + list(text.encode())

    def token_places(self, text: str) -> list[int]:
        added = [0] * (len(self.encode(text)) - len(text.encode()))
        return added + [place for place, char in enumerate(text) for _ in char.encode()]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = (token for token in ids if not (skip_special_tokens and token in self.special_token_ids))
        return b"".join(map(self.id_to_bytes, kept)).decode(errors="replace")

    def id_to_bytes(self, token_id: int) -> bytes:
        return self._table[token_id] if token_id < len(self._table) else b""

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True, tools: Any = None) -> str:
        if any("content" not in message for message in messages):
            raise ChatTemplateError("a message has no content")
        return "".join(f"<{message['role']}>{message['content']}\n" for message in messages) + "<assistant>"

    def encode_chat(self, messages: Any, add_generation_prompt: bool = True, tools: Any = None) -> list[int]:
        return self.encode(self.apply_chat_template(messages, tools=tools), add_special_tokens=False)


class ScriptedExecutor:
    """Samples what the script says: the n-th output of a request is ``script(request_id, prompt)[n]``, then ``EOS``.

    Args:
        script: see above.
        before: called with every plan when it is submitted, to raise or to look.
        during: called with every plan when its result is awaited.
    """

    def __init__(
        self,
        script: Callable[[str, list[int]], Sequence[int]],
        *,
        before: Callable[[StepPlan], object] = lambda plan: None,
        during: Callable[[StepPlan], object] = lambda plan: None,
    ) -> None:
        self._script = script
        self._before = before
        self._during = during
        self._rows: dict[int, tuple[Sequence[int], list[int], SamplingParams]] = {}
        self._plans: deque[StepPlan] = deque()
        self.plans: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> None:
        for row in plan.admitted:
            prompt = row.tokens[: row.num_prompt_tokens].tolist()
            self._rows[row.slot] = (self._script(row.request_id, prompt), prompt, row.sampling)
        self._before(plan)
        self.plans.append(plan)
        self._plans.append(plan)

    def collect(self) -> StepResult:
        plan = self._plans.popleft()
        self._during(plan)
        tokens = np.full((plan.num_rows, 1), -1, np.int32)
        logprobs: dict[int, object] = {}
        prompt_logprobs: dict[int, object] = {}
        for row, slot in enumerate(plan.slots.tolist()):
            outputs, prompt, sampling = self._rows[slot]
            start, end = int(plan.starts[row]), int(plan.starts[row] + plan.num_scheduled[row])
            if sampling.prompt_logprobs is not None and start < len(prompt):
                prompt_logprobs[row] = PromptLogprobs(
                    start, tuple(measured(token) if start + n else None for n, token in enumerate(prompt[start:end]))
                )
            if plan.samples[row]:
                place = end - len(prompt)
                tokens[row, 0] = outputs[place] if place < len(outputs) else EOS
                logprobs[row] = [measured(int(tokens[row, 0]))]
        return StepResult(plan.step, tokens, plan.samples.astype(np.int32), logprobs, prompt_logprobs)


class TimedExecutor(FakeExecutor):
    """Says what its steps and copies took: 10 ms and 1 ms per token; 0.2 ms per block copied, or what is asked for.

    Args:
        block_copy_s: seconds per block copied, by step.
    """

    def __init__(self, *, block_copy_s: Callable[[int], float] = lambda step: 0.0002, **options: Any) -> None:
        super().__init__(block_size=4, vocab_size=256, **options)
        self._block_copy_s = block_copy_s
        self.plans: list[StepPlan] = []

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        self.plans.append(plan)
        copies = len(plan.swap_out) + len(plan.swap_in)
        times = {"forward_s": 0.01 + 0.001 * plan.num_tokens, "copy_s": copies * self._block_copy_s(plan.step)}
        self._results[-1] = dataclasses.replace(self._results[-1], **times)


def measured(token: int) -> TokenLogprobs:
    """A record that names its token."""
    return TokenLogprobs(token, -1.0, 1, ())


def ticking_clock() -> Callable[[], float]:
    """A clock that goes on by one second whenever it is read."""
    ticks = itertools.count(1)
    return lambda: float(next(ticks))


def make_scheduler(**overrides: Any) -> Scheduler:
    """A small scheduler: 4 slots, 64 tokens a step, model length 128, 100 blocks of 4 tokens."""
    scheduler = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 128}
    cache = {"block_size": 4, "num_blocks": 100}
    for name, value in overrides.items():
        (scheduler if name in _SCHEDULER_FIELDS else cache)[name] = value
    return Scheduler(SchedulerConfig(**scheduler), CacheConfig(**cache))


def make_engine(
    executor: Any,
    *,
    tokenizer: ByteTokenizer | None = None,
    clock: Callable[[], float] | None = None,
    trace: TraceWriter | None = None,
    depth: int = 1,
    isolate_errors: bool = True,
    **overrides: Any,
) -> Engine:
    """An engine over a small scheduler; overrides are options of it."""
    tokenizer = tokenizer if tokenizer is not None else ByteTokenizer()
    loop = EngineLoop(
        make_scheduler(**overrides),
        executor,
        clock if clock is not None else ticking_clock(),
        processor=OutputProcessor(tokenizer),
        trace=trace,
        depth=depth,
        isolate_errors=isolate_errors,
    )
    return Engine(loop, tokenizer, VOCAB_SIZE, tokenizer.eos_token_ids)


def echo(request_id: str, prompt: list[int]) -> list[int]:
    """A script: every request says its prompt again, over and over."""
    return prompt * 50


def scripts(outputs: Mapping[str, Sequence[int]]) -> Callable[[str, list[int]], Sequence[int]]:
    """A script by request id."""
    return lambda request_id, prompt: outputs[request_id]
