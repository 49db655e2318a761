"""One engine: a loop, a tokenizer and the limits of a model, behind which a prompt is text or token ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from types import MappingProxyType
from typing import Any

import numpy as np

from headway.config import ConfigError, SamplingParams, Structured
from headway.core.plan import Int32
from headway.core.policies import SLO_CLASSES
from headway.core.request import Request, RequestRefused, token_array
from headway.core.rest import MAX_IDLE_STEPS, RestRule
from headway.core.scheduler import Scheduler
from headway.engine.bad_words import banned_sequences
from headway.engine.loop import EngineLoop, StepReport
from headway.engine.metrics import EngineMetrics, MemoryUse
from headway.engine.outputs import RequestUpdate
from headway.engine.stall import describe_state
from headway.models.loading import ChatTemplateError, Tokenizer

Prompt = str | Sequence[int] | Int32

MAX_PAUSE_S = 60.0
"""A hold is looked at again after so long, however long it lasts: who waits need not think of overflows."""

MAX_PRIORITY = 2**31 - 1
"""Priorities go from minus this to this."""


class EngineStalled(RuntimeError):
    """Requests are unfinished and no step changes anything: a bug. The message has the scheduler's whole state."""


@dataclass(frozen=True)
class Prepared:
    """A request that passed all checks and can be added.

    Attributes:
        request: for the scheduler.
        text: the prompt, if it was given as text.
    """

    request: Request
    text: str | None


@dataclass
class Engine:
    """Takes prompts, makes updates. Used by one thread at a time; :meth:`prepare` may be called by others meanwhile.

    Attributes:
        loop: drives scheduler and executor.
        tokenizer: ``None`` if prompts are token ids only and outputs have no text.
        vocab_size: token ids of prompts are below this.
        eos_token_ids: ids that end an output.
        limits: what was decided at start, one sentence each.
        kv_block_bytes: of one KV block over all layers; 0 if there are none.
        memory_use: reads what memory the KV blocks take; may be called from any thread.
        on_close: called once at the end.
        sleep: how :meth:`step` waits, for so many seconds of the loop's clock.
        compile_form: compiles forms of outputs, so that no step has to; may be called from any thread. Raises
            :class:`ConfigError` for one that cannot be used. ``None`` if the executor keeps to none.
        sampling_defaults: sampling parameters that hold where nothing else is said, by name; all else is as
            :class:`SamplingParams` has it.
    """

    loop: EngineLoop
    tokenizer: Tokenizer | None
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    limits: tuple[str, ...] = ()
    kv_block_bytes: int = 0
    memory_use: Callable[[], MemoryUse] = MemoryUse
    on_close: Callable[[], None] | None = None
    compile_form: Callable[[Structured], Structured] | None = None
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep
    _rest: RestRule = field(init=False)
    _resume_s: float = field(default=-inf, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._rest = RestRule(self.scheduler)

    @property
    def scheduler(self) -> Scheduler:
        """To look into; do not drive it."""
        return self.loop.scheduler

    @property
    def metrics(self) -> EngineMetrics:
        """What was counted so far."""
        return self.loop.metrics

    @property
    def has_work(self) -> bool:
        """Whether another step has something to do."""
        return self.loop.has_work

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What holds for a request that says nothing: the model's defaults, and Headway's for the rest."""
        return SamplingParams(**self.sampling_defaults)

    def prepare(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        deadline_s: float | None = None,
        slo: str = "",
        add_special_tokens: bool = True,
    ) -> Prepared:
        """Make a request and check it, without adding it.

        Args:
            prompt: text or token ids.
            sampling: ``default_sampling_params`` if ``None``.
            request_id: unique among unfinished requests.
            priority: smaller is more urgent, under the priority policy.
            cache_salt: prefixes are shared within one salt only.
            tenant: who asks, for the fair policy.
            deadline_s: seconds after arrival by which it should be served, for the deadline policy.
            slo: a class of deadlines instead, one of ``SLO_CLASSES``.
            add_special_tokens: whether a text gets the model's beginning-of-text token.

        Raises:
            RequestRefused: it is malformed or can never be served.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        try:
            request = Request(
                request_id,
                self._token_ids(prompt, add_special_tokens),
                sampling if sampling is not None else self.default_sampling_params,
                eos_token_ids=self.eos_token_ids,
                priority=priority,
                cache_salt=cache_salt,
                tenant=tenant,
                deadline_s=deadline_s,
                slo=slo,
            )
            request.sampling = self.with_bad_words(self._with_compiled_form(request.sampling))
            self._check_numbers(request.sampling, request.priority)
            _check_deadline(request.deadline_s, request.slo)
            self.scheduler.check(request)
        except RequestRefused as refusal:
            self.metrics.refused(refusal.field)
            raise
        return Prepared(request, prompt if isinstance(prompt, str) else None)

    def prepare_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams | None = None,
        *,
        request_id: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        ending: Mapping[str, Any] = MappingProxyType({}),
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        deadline_s: float | None = None,
        slo: str = "",
    ) -> Prepared:
        """The same for a conversation, which the model's chat template makes a prompt of.

        Args:
            messages: with "role" and "content".
            tools: JSON schemas of functions the model may call, for templates that know them.
            ending: how the prompt ends: ``add_generation_prompt`` and ``continue_final_message`` of
                :meth:`Tokenizer.apply_chat_template`.

        The other arguments are those of :meth:`prepare`.

        Raises:
            RequestRefused: as above, or the template refuses the messages.
        """
        if self.tokenizer is None:
            raise RequestRefused("messages", "text", None, "this engine has no tokenizer, so it cannot chat")
        try:
            text = self.tokenizer.apply_chat_template(messages, tools=tools, **ending)
        except ChatTemplateError as error:
            self.metrics.refused("messages")
            raise RequestRefused("messages", len(messages), None, str(error)) from error
        return self.prepare(
            text,
            sampling,
            request_id=request_id,
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
            deadline_s=deadline_s,
            slo=slo,
            add_special_tokens=False,  # the template writes them all
        )

    def add(self, prepared: Prepared) -> int:
        """Enter a prepared request.

        Returns:
            Its handle, by which updates and aborts know it.

        Raises:
            RequestRefused: meanwhile another unfinished request has its id.
        """
        self._resume_s = -inf
        return self.loop.add(prepared.request, prepared.text)

    def abort(self, handle: int) -> None:
        """End a request now; its last update comes with the next step. Handles of ended requests are ignored."""
        if self._closed:
            return
        self._resume_s = -inf
        self.loop.abort(handle)
        self.loop.apply_aborts()

    @property
    def pause_s(self) -> float:
        """For so many seconds another step would change nothing, unless a request comes or goes: the policy holds them
        back for so long. 0 if there is something to do now."""
        if self._resume_s == -inf:
            return 0.0
        return min(max(0.0, self._resume_s - self.loop.clock()), MAX_PAUSE_S)

    def step(self) -> tuple[RequestUpdate, ...]:
        """Run one step, when its time has come; only what is for the clients.

        Raises:
            EngineStalled: nothing moves any more.
        """
        if (pause_s := self.pause_s) > 0:
            self.sleep(pause_s)
        return self.advance().updates

    def advance(self, late_aborts: Callable[[], Iterable[int]] = tuple) -> StepReport:
        """Run one step now; all that happened. Who calls it in a loop waits for :attr:`pause_s` in between.

        Args:
            late_aborts: see :meth:`EngineLoop.step`.

        Raises:
            EngineStalled: nothing moves any more.
        """
        if self._closed:
            raise RuntimeError("the engine is closed")
        report = self.loop.step(late_aborts)
        moved = report.plan is not None or bool(report.events)
        now = self.loop.clock()
        resume_s = self._rest.observe(now, moved=moved)
        if resume_s == inf:
            raise EngineStalled(f"no request moved in {MAX_IDLE_STEPS} steps\n{describe_state(self.scheduler)}")
        self._resume_s = resume_s if resume_s > now else -inf
        return report

    def close(self) -> None:
        """Take no more requests and do no more steps; close the trace. More calls do nothing."""
        if not self._closed:
            self._closed = True
            if self.on_close is not None:
                self.on_close()

    def _token_ids(self, prompt: Prompt, add_special_tokens: bool) -> Int32:
        """The prompt as tokens of the vocabulary."""
        if isinstance(prompt, str):
            return np.array(self._encode(prompt, add_special_tokens), np.int32)
        ids = token_array(prompt)
        outside = (ids < 0) | (ids >= self.vocab_size)
        if outside.any():
            place = int(np.argmax(outside))
            raise RequestRefused(
                "prompt",
                int(ids[place]),
                self.vocab_size - 1,
                f"token {place} of the prompt is {ids[place]}; ids go from 0 to {self.vocab_size - 1}",
            )
        return ids.astype(np.int32)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if self.tokenizer is None:
            raise RequestRefused("prompt", "text", None, "this engine has no tokenizer: give the prompt as token ids")
        try:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeError) as error:
            raise RequestRefused("prompt", "text", None, f"the prompt cannot be encoded: {error}") from error

    def _with_compiled_form(self, sampling: SamplingParams) -> SamplingParams:
        """The same parameters, the form of the output compiled."""
        form = sampling.structured
        if form is None:
            return sampling
        if self.compile_form is None:
            raise RequestRefused("structured", form.kind, None, "this engine cannot keep outputs to a form")
        try:
            return replace(sampling, structured=self.compile_form(form))
        except ConfigError as error:
            raise RequestRefused(error.field, error.value, None, str(error)) from error

    def with_bad_words(self, sampling: SamplingParams) -> SamplingParams:
        """The same parameters, bad words as tokens. May be called from any thread.

        Raises:
            RequestRefused: there is no tokenizer, or a word cannot be encoded.
        """
        if not sampling.bad_words:
            return sampling
        if self.tokenizer is None:
            raise RequestRefused("bad_words", sampling.bad_words[0], None, "this engine has no tokenizer for bad_words")
        try:
            sequences = banned_sequences(sampling.bad_words, self.tokenizer)
        except (TypeError, UnicodeError) as error:
            message = f"bad_words cannot be encoded: {error}"
            raise RequestRefused("bad_words", len(sampling.bad_words), None, message) from error
        # Tokens that the model has no scores for cannot come anyway.
        sequences = tuple(tokens for tokens in sequences if max(tokens) < self.vocab_size)
        return replace(sampling, bad_words=(), bad_token_ids=(*sampling.bad_token_ids, *sequences))

    def _check_numbers(self, sampling: SamplingParams, priority: int) -> None:
        """Refuse what cannot be put into the columns: one such request must not break the step of the others."""
        last = self.vocab_size - 1
        named = {
            "logit_bias": tuple(sampling.logit_bias),
            "stop_token_ids": sampling.stop_token_ids,
            "bad_token_ids": tuple(chain.from_iterable(sampling.bad_token_ids)),
        }
        for name, ids in named.items():
            for token_id in ids:
                if not 0 <= token_id <= last:
                    message = f"{name} names token {token_id}; ids go from 0 to {last}"
                    raise RequestRefused(name, token_id, last, message)
        longest = self.scheduler.config.max_model_len
        if sampling.min_tokens >= longest:
            message = f"min_tokens is {sampling.min_tokens}; it must be below max_model_len ({longest})"
            raise RequestRefused("min_tokens", sampling.min_tokens, longest - 1, message)
        if abs(priority) > MAX_PRIORITY:
            message = f"priority is {priority}; it must be from {-MAX_PRIORITY} to {MAX_PRIORITY}"
            raise RequestRefused("priority", priority, MAX_PRIORITY, message)


def _check_deadline(deadline_s: float | None, slo: str) -> None:
    """Refuse deadlines that nothing can be ordered by, and classes that nobody defined."""
    if deadline_s is not None and deadline_s <= 0.0:
        message = f"deadline_s is {deadline_s}; it must be a number of seconds above 0"
        raise RequestRefused("deadline_s", deadline_s, None, message)
    if slo and slo not in SLO_CLASSES:
        raise RequestRefused("slo", slo, None, f"slo is {slo!r}; it must be one of {', '.join(SLO_CLASSES)}")
