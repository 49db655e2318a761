"""One generation call from its admission to its end.

Order: :meth:`Call.start` once; then :meth:`Call.take` until it returns ``None``; :meth:`Call.close` always. The counts
of admission do not depend on any of it: what was never submitted is given back by ``close``, what was submitted when
the engine lets go of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from headway.config import ConfigError, SamplingParams
from headway.core.request import RequestRefused
from headway.engine.async_engine import AsyncEngine, EngineDead, UpdateStream
from headway.engine.engine import Prepared
from headway.engine.outputs import RequestUpdate
from headway.server import errors
from headway.server.admission import Ticket, TurnedAway
from headway.server.compiling import Compiling
from headway.server.errors import ApiError
from headway.server.reasoning import TAIL_TOKENS, Place
from headway.server.spec import CallSpec, ChatPrompt, EchoedPrompt, sampling_of
from headway.server.tokenising import TokenIds, Tokenising

Updates = list[tuple[int, RequestUpdate]]


class Call:
    """A call that was let in.

    Args:
        request_id: its name, for the client too.
        owner: who may abort it; empty if there are no API keys.
        spec: what it asks for.
        cache_salt: the client's, or one that keeps its key's prefixes apart.
        ticket: its place in the counts.
        engine, tokenising, compiling: what it runs on.
        on_close: called once at the end.
    """

    def __init__(
        self,
        request_id: str,
        owner: str,
        spec: CallSpec,
        cache_salt: str,
        *,
        ticket: Ticket,
        engine: AsyncEngine,
        tokenising: Tokenising,
        compiling: Compiling,
        on_close: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self.owner = owner
        self.spec = spec
        self._sampling = spec.sampling
        self._cache_salt = cache_salt
        self._ticket = ticket
        self._engine = engine
        self._tokenising = tokenising
        self._compiling = compiling
        self._on_close: Callable[[], None] | None = on_close
        self._updates: UpdateStream | None = None
        self.prompts: list[TokenIds] = []
        """Known once it has started."""
        self.reasoning_is_open = False
        """Whether its outputs begin within reasoning; known once it has started."""
        self._failure: ApiError | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if spec.timeout_s is not None:
            self._deadline = asyncio.get_running_loop().call_later(spec.timeout_s, self._expire)

    async def start(self, *, final_only: bool) -> list[EchoedPrompt]:
        """Tokenise, compile the form of the output, count and submit.

        Args:
            final_only: whether only whole outputs are wanted.

        Returns:
            The prompts as the answer repeats them; nothing if it does not.

        Raises:
            ApiError: the call cannot be served, or was ended meanwhile.
        """
        try:
            prompts = await self._tokenising.encode(self.spec.prompts, self._may_go_on)
            self._sampling = await self._compiling.compile(self._with_reasoning(prompts), self.spec.form_field)
            self._sampling = await self._with_bad_words(self._sampling)
            self._may_go_on()
            self.prompts = prompts
            prepared = self._prepare(prompts)
            echoed = await self._echoed(prompts) if self.spec.echo else []
            self._may_go_on()
            self._ticket.charge([entry.request.num_prompt_tokens for entry in prepared])
            self._updates = self._engine.submit(prepared, final_only=final_only, listener=self._ticket)
            return echoed
        except RequestRefused as refusal:
            raise errors.refused(refusal, self.spec.prompt_field) from refusal
        except ConfigError as error:
            raise errors.bad_option(error) from error
        except TurnedAway as error:
            raise errors.turned_away(error) from error
        except EngineDead as error:
            raise errors.engine_dead(str(error)) from error

    async def take(self, timeout_s: float | None = None) -> Updates | None:
        """What is new, by index of the generation; empty after ``timeout_s``, ``None`` at the end.

        Raises:
            ApiError: no more will come.
        """
        if self._updates is None:
            raise RuntimeError("the call was not started")
        try:
            return await self._updates.take(timeout_s)
        except EngineDead as error:
            raise errors.engine_dead(str(error)) from error

    def abort(self) -> None:
        """End it as its client asked: the answer ends with what there is."""
        if self._updates is not None:
            self._engine.abort(self._updates.serials)
        else:
            self._failure = ApiError(409, "the call was aborted before it began", code="aborted")

    def fail(self, error: ApiError) -> None:
        """End it with an error, at once."""
        self._failure = error
        if self._updates is not None:
            self._updates.fail(error)
            self._engine.abort(self._updates.serials)

    def close(self) -> None:
        """Nobody waits for it any more. More calls do nothing."""
        if self._on_close is None:
            return
        on_close, self._on_close = self._on_close, None
        if self._deadline is not None:
            self._deadline.cancel()
        if self._updates is not None:
            self._updates.close()
        else:
            self._ticket.release()
        on_close()

    async def _with_bad_words(self, sampling: SamplingParams) -> SamplingParams:
        num_chars = sum(map(len, sampling.bad_words))
        return await self._tokenising.aside(lambda: self._engine.engine.with_bad_words(sampling), num_chars)

    def _may_go_on(self) -> None:
        """Raise what ended the call while it waited, or if by now there is no room for it."""
        if self._failure is not None:
            raise self._failure
        self._ticket.check()

    def _with_reasoning(self, prompts: Sequence[TokenIds]) -> SamplingParams:
        """The sampling parameters, with the reasoning that may come before the form of the output."""
        sampling, known, prompt = self.spec.sampling, self.spec.reasoning, self.spec.prompts[0]
        if known is None:
            return sampling
        if isinstance(prompt, ChatPrompt) and prompt.continue_final_message:
            place = known.place_in(prompt.messages[-1]["content"])
        else:
            end = [int(token_id) for token_id in prompts[0][-TAIL_TOKENS:]]
            place = known.place_after(self._tokenising.decode(end, skip_special_tokens=False))
        self.reasoning_is_open = place is Place.WITHIN
        if sampling.structured is None:
            return sampling
        before = known.before_form(place, self._tokenising.special_ids)
        return replace(sampling, structured=replace(sampling.structured, reasoning=before))

    def _prepare(self, prompts: Sequence[TokenIds]) -> list[Prepared]:
        spec = self.spec
        if self._engine.error is not None:
            raise EngineDead(str(self._engine.error))
        prepared: list[Prepared] = []
        for token_ids in prompts:
            ids = np.asarray(token_ids) if len(token_ids) else token_ids
            for candidate in range(spec.candidates):
                name = f"{self.request_id}#{len(prepared)}" if spec.num_requests > 1 else self.request_id
                prepared.append(
                    self._engine.engine.prepare(
                        ids,
                        sampling_of(self._sampling, candidate),
                        request_id=name,
                        priority=spec.priority,
                        cache_salt=self._cache_salt,
                        tenant=self.owner or spec.user,
                        deadline_s=spec.deadline_s,
                        slo=spec.slo,
                    )
                )
        return prepared

    async def _echoed(self, prompts: Sequence[TokenIds]) -> list[EchoedPrompt]:
        """The prompts as the answer repeats them."""
        given = self.spec.prompts
        unknown = [list(map(int, ids)) for each, ids in zip(given, prompts, strict=True) if not isinstance(each, str)]
        skip = self.spec.sampling.skip_special_tokens
        decoded = iter(await self._tokenising.texts_of(unknown, skip_special_tokens=skip))
        known = [each for each in given if isinstance(each, str)]
        places = iter(await self._tokenising.places_of(known) if self.spec.wants_logprobs else [()] * len(known))
        return [
            EchoedPrompt(each, next(places)) if isinstance(each, str) else EchoedPrompt(next(decoded)) for each in given
        ]

    def _expire(self) -> None:
        if self._updates is not None:
            self._engine.expire(self._updates.serials)
        else:
            self._failure = ApiError(
                504,
                "the request had not begun by its deadline",
                kind=errors.FAILED,
                code="queue_timeout",
                param="timeout",
            )
