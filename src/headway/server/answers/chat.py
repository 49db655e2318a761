"""Answers of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.logprobs import TokenLogprobs
from headway.engine.outputs import RequestOutput, RequestUpdate
from headway.server.answers.base import Answer, Choice, finish
from headway.server.answers.tokens import LEAST_LOGPROB, finite, token_text
from headway.server.tools.legacy import as_function_call
from headway.server.tools.parsers import Delta, ToolParser, whole


class ChatAnswer(Answer):
    """Choices with a "message", or with a "delta" in streams; tool calls in their texts are told apart."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._begun: set[int] = set()
        self._parsers: dict[int, ToolParser] = {}

    def choices_of(self, index: int, update: RequestUpdate) -> list[Choice]:
        choices = []
        if index not in self._begun:
            self._begun.add(index)
            choices.append(self._chunk(index, {"role": "assistant", "content": ""}))
        if update.text or (update.token_ids and (self.spec.wants_logprobs or self.spec.return_token_ids)):
            first, *more = self._deltas(index, update.text) or [{}]
            if first or self.spec.wants_logprobs or self.spec.return_token_ids:
                choices.append(self._chunk(index, first, update))
            choices += [self._chunk(index, delta) for delta in more]
        if update.output is not None:
            parser = self._parsers.get(index)
            choices += [self._chunk(index, delta) for delta in self._shown(parser.finish() if parser else [])]
            choices.append({**self._chunk(index, {}), **self._end(finish(update.output.outputs[0]), parser)})
        return choices

    def _deltas(self, index: int, text: str) -> list[Delta]:
        """What new text of a choice adds to its message."""
        if self.spec.make_tool_parser is None:
            return [{"content": text}]
        if index not in self._parsers:
            self._parsers[index] = self.spec.make_tool_parser()
        return self._shown(self._parsers[index].feed(text))

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        """Calls in the form that was asked for."""
        if not self.spec.legacy_calls:
            return deltas
        return [shown for delta in deltas if (shown := as_function_call(delta)) is not None]

    def choice(self, index: int, output: RequestOutput) -> Choice:
        completion = output.outputs[0]
        message: dict[str, Any] = {"role": "assistant", "content": completion.text, "refusal": None}
        end = finish(completion)
        if self.spec.make_tool_parser is not None:
            parser = self.spec.make_tool_parser()
            message["content"], calls = whole(parser, completion.text)
            end = self._end(end, parser)
            if calls:
                message = self._shown([{**message, "tool_calls": calls}])[0]
        choice: Choice = {"index": index, "message": message, "logprobs": None, **end}
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

    def _end(self, end: dict[str, Any], parser: ToolParser | None) -> dict[str, Any]:
        """How a choice ended, if calls were found in it."""
        if parser is not None and parser.num_calls and end["finish_reason"] == "stop":
            return {**end, "finish_reason": "function_call" if self.spec.legacy_calls else "tool_calls"}
        return end

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
