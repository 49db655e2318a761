"""Answers of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.logprobs import TokenLogprobs
from headway.engine.outputs import RequestOutput, RequestUpdate
from headway.server.answers.base import Answer, Choice, finish
from headway.server.answers.tokens import LEAST_LOGPROB, finite, token_text


class ChatAnswer(Answer):
    """Choices with a "message", or with a "delta" in streams."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._begun: set[int] = set()

    def choices_of(self, index: int, update: RequestUpdate) -> list[Choice]:
        choices = []
        if index not in self._begun:
            self._begun.add(index)
            choices.append(self._chunk(index, {"role": "assistant", "content": ""}))
        if update.text or (update.token_ids and (self.spec.wants_logprobs or self.spec.return_token_ids)):
            choices.append(self._chunk(index, {"content": update.text}, update))
        if update.output is not None:
            choices.append({**self._chunk(index, {}), **finish(update.output.outputs[0])})
        return choices

    def choice(self, index: int, output: RequestOutput) -> Choice:
        completion = output.outputs[0]
        message = {"role": "assistant", "content": completion.text, "refusal": None}
        choice: Choice = {"index": index, "message": message, "logprobs": None, **finish(completion)}
        if self.spec.wants_logprobs:
            choice["logprobs"] = self._logprobs(completion.token_ids, completion.logprobs or ())
        if self.spec.return_token_ids:
            choice["token_ids"] = list(completion.token_ids)
        return choice

    def _chunk(self, index: int, delta: dict[str, Any], update: RequestUpdate | None = None) -> Choice:
        choice: Choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if update is not None and self.spec.wants_logprobs:
            choice["logprobs"] = self._logprobs(update.token_ids, update.logprobs or ())
        if update is not None and self.spec.return_token_ids:
            choice["token_ids"] = list(update.token_ids)
        return choice

    def _logprobs(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        content = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            top = () if entry is None else entry.top
            content.append(
                {
                    **self._token(token_id, LEAST_LOGPROB if entry is None else entry.logprob),
                    "top_logprobs": [self._token(*pair) for pair in top],
                }
            )
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        token = self._bytes_of(token_id)
        return {"token": token_text(token), "logprob": finite(logprob), "bytes": list(token)}
