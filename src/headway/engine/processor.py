"""From step outputs to what clients get: text, stop strings, log probabilities, final outputs.

An error here concerns one request, and ends that one only.
"""

from __future__ import annotations

import logging

from headway.core.events import Finished, StepOutput
from headway.core.logprobs import PromptLogprobs, TokenLogprobs
from headway.core.plan import StepPlan, StepResult
from headway.core.request import FinishReason, Request
from headway.engine.detokenizer import TokenBytes, Vocabulary
from headway.engine.outputs import CompletionOutput, RequestError, RequestMetrics, RequestOutput, RequestUpdate
from headway.engine.text_stream import TextStream

logger = logging.getLogger(__name__)


class RequestOutlet:
    """One live request on its way out."""

    def __init__(self, request: Request, prompt_text: str | None, token_bytes: TokenBytes | None) -> None:
        self.request_id = request.request_id
        self.handle = request.handle
        self.sampling = request.sampling
        self.prompt_text = prompt_text
        self.prompt_token_ids = tuple(request.tokens.tolist())
        self.stream = TextStream(request.sampling, token_bytes, self.prompt_token_ids)
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        if request.sampling.prompt_logprobs is not None:
            self.prompt_logprobs = [None] * len(self.prompt_token_ids)
        self.error = ""
        """What went wrong here, if something did."""

    def push(self, tokens: list[int], logprobs: object, *, stopped_by_token: bool) -> None:
        """Take in the tokens of one step; ``stopped_by_token`` if the last of them is what ended the request."""
        records = logprobs if isinstance(logprobs, (list, tuple)) else (logprobs,)
        for place, token_id in enumerate(tokens):
            record = records[place] if place < len(records) else None
            ends = stopped_by_token and place == len(tokens) - 1
            self.stream.push(
                token_id,
                record if isinstance(record, TokenLogprobs) else None,
                has_text=not ends or self.sampling.include_stop_str_in_output,
            )

    def collect_prompt_logprobs(self, part: PromptLogprobs) -> None:
        """Enter what one step computed; after a preemption the same places come again."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs[part.start : part.start + len(part.entries)] = part.entries

    def take_update(self, output: RequestOutput | None = None) -> RequestUpdate | None:
        """What is new, if anything is."""
        piece = self.stream.take()
        if piece.is_empty and output is None:
            return None
        return RequestUpdate(
            self.request_id, piece.text, piece.token_ids, piece.logprobs, output, piece.specials, self.handle
        )


class OutputProcessor:
    """Turns delivered tokens into updates, request by request.

    Order of calls per step: :meth:`deliver`; then for each request that ended, those that ``deliver`` named
    included, :meth:`close` and :meth:`finish`; then :meth:`take_updates`.

    Args:
        vocabulary: the tokenizer's; ``None`` leaves all text empty.
    """

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._token_bytes: dict[bool, TokenBytes | None] = {False: None, True: None}
        if vocabulary is not None:
            self._token_bytes = {skip: TokenBytes(vocabulary, skip_special_tokens=skip) for skip in (False, True)}
        self._outputs: dict[int, RequestOutlet] = {}
        self._handle_of: dict[int, int] = {}
        """slot -> handle of the request that the plans delivered so far put there."""
        self._updates: list[RequestUpdate] = []

    def open(self, request: Request, prompt_text: str | None = None) -> RequestOutlet:
        """Get ready for a request that the scheduler has not taken yet."""
        return RequestOutlet(request, prompt_text, self._token_bytes[request.sampling.skip_special_tokens])

    def add(self, handle: int, outlet: RequestOutlet) -> None:
        """The scheduler has taken the request and given it its handle."""
        outlet.handle = handle
        self._outputs[handle] = outlet

    @property
    def has_updates(self) -> bool:
        """Whether there is something to take."""
        return bool(self._updates)

    def deliver(self, plan: StepPlan, result: StepResult, output: StepOutput) -> dict[int, str]:
        """Take in what a step delivered.

        Returns:
            Handles of requests to end now though the scheduler goes on with them, with "stop" (a stop string was found)
            or "error" (their output cannot be made).
        """
        self._handle_of.update((row.slot, row.handle) for row in plan.admitted)
        for row, part in result.prompt_logprobs.items():
            out = self._outputs.get(self._handle_of[int(plan.slots[row])])
            if out is not None and isinstance(part, PromptLogprobs):
                out.collect_prompt_logprobs(part)
        ended = {event.handle: event.reason for event in output.finished}
        to_end: dict[int, str] = {}
        rows, handles = output.rows.tolist(), output.handles.tolist()
        for row, handle, tokens, count in zip(
            rows, handles, output.tokens.tolist(), output.counts.tolist(), strict=True
        ):
            out = self._outputs[handle]
            reason = ended.get(handle)
            try:
                out.push(tokens[:count], result.logprobs.get(row), stopped_by_token=reason is FinishReason.STOP)
            except Exception as error:
                self._fail(out, error)
            if reason is not None:
                continue
            if out.error or out.stream.stop is not None:
                to_end[handle] = "error" if out.error else "stop"
            else:
                self._put(out.take_update())
        return to_end

    def close(self, event: Finished) -> tuple[str, int]:
        """Let go of what was held back of a request that ended.

        Returns:
            Why it ended, as its client sees it, and how many tokens it delivered.
        """
        out = self._outputs[event.handle]
        if not out.error:
            try:
                out.stream.finish(look_for_stop=event.reason in (FinishReason.STOP, FinishReason.LENGTH))
            except Exception as error:
                self._fail(out, error)
        reason = event.reason
        if out.error:
            reason = FinishReason.ERROR
        elif out.stream.stop is not None:
            reason = FinishReason.STOP
        return reason.value, len(out.stream.token_ids)

    def finish(self, event: Finished, reason: str, metrics: RequestMetrics) -> None:
        """Make the final output of a request that was closed."""
        out = self._outputs.pop(event.handle)
        stream = out.stream
        error = None
        if reason in (FinishReason.ERROR.value, FinishReason.KV_CAPACITY.value):
            error = RequestError(reason, out.error or event.message)
        completion = CompletionOutput(
            text=stream.text,
            token_ids=stream.token_ids,
            finish_reason=reason,
            stop_reason=stream.stop if stream.stop is not None else event.stop_token_id,
            logprobs=stream.logprobs,
            specials=stream.specials,
        )
        final = RequestOutput(
            request_id=out.request_id,
            prompt=out.prompt_text,
            prompt_token_ids=out.prompt_token_ids,
            outputs=(completion,),
            prompt_logprobs=None if out.prompt_logprobs is None else tuple(out.prompt_logprobs),
            metrics=metrics,
            error=error,
        )
        self._put(out.take_update(final))

    def take_updates(self) -> list[RequestUpdate]:
        """Updates since the last call, in the order in which they came about."""
        updates, self._updates = self._updates, []
        return updates

    def _put(self, update: RequestUpdate | None) -> None:
        if update is not None:
            self._updates.append(update)

    def _fail(self, out: RequestOutlet, error: Exception) -> None:
        logger.exception("the output of request %r failed", out.request_id, exc_info=error)
        out.error = f"its output could not be made: {type(error).__name__}: {error}"
