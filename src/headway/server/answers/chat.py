"""Answers of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.logprobs import TokenLogprobs
from headway.engine.outputs import RequestOutput, RequestUpdate
from headway.server.answers.base import Answer, Choice, finish
from headway.server.answers.tokens import LEAST_LOGPROB, finite, token_text
from headway.server.message_parser import MessageParser, whole
from headway.server.reasoning import ReasoningParser
from headway.server.tools.legacy import as_function_call
from headway.server.tools.parsers import Delta


class ChatAnswer(Answer):
    """Choices with a "message", or with a "delta" in streams; reasoning and tool calls in texts are told apart."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._parsers: dict[int, MessageParser] = {}

    def choices_of(self, index: int, update: RequestUpdate) -> list[Choice]:
        choices = []
        if index not in self._parsers:
            self._parsers[index] = self._make_parser()
            choices.append(self._chunk(index, {"role": "assistant", "content": ""}))
        parser, shows_tokens = self._parsers[index], self.spec.wants_logprobs or self.spec.return_token_ids
        if update.text or update.specials or (update.token_ids and shows_tokens):
            first, *more = self._shown(parser.feed(update.text, update.specials)) or [{}]
            if first or (update.token_ids and shows_tokens):
                choices.append(self._chunk(index, first, update))
            choices += [self._chunk(index, delta) for delta in more]
        if update.output is not None:
            choices += [self._chunk(index, delta) for delta in self._shown(parser.finish())]
            choices.append({**self._chunk(index, {}), **self._end(finish(update.output.outputs[0]), parser)})
        return choices

    def _make_parser(self) -> MessageParser:
        tools = self.spec.make_tool_parser() if self.spec.make_tool_parser is not None else None
        known, reasoning = self.spec.reasoning, None
        if known is not None:
            reasoning = ReasoningParser(known, is_open=self._reasoning_is_open)
        marks = (*(known.marks if known is not None else ()), *(tools.marks if tools is not None else ()))
        return MessageParser(marks, reasoning, tools, show_reasoning=self.spec.show_reasoning)

    def _completion_details(self, outputs: Sequence[RequestOutput]) -> dict[str, int]:
        known = self.spec.reasoning
        if known is None:
            return {}
        marks = {mark.text.encode() for mark in known.marks}

        def text_of(token_id: int) -> bytes:
            token = self._bytes_of(token_id)
            return token if token in marks else self._text_bytes(token_id)

        counts = [
            known.num_tokens(output.outputs[0].token_ids, text_of, is_open=self._reasoning_is_open)
            for output in outputs
        ]
        return {"reasoning_tokens": sum(counts)}

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        """Calls in the form that was asked for."""
        if not self.spec.legacy_calls:
            return deltas
        return [shown for delta in deltas if (shown := as_function_call(delta)) is not None]

    def choice(self, index: int, output: RequestOutput) -> Choice:
        completion, parser = output.outputs[0], self._make_parser()
        parts = whole(parser, completion.text, completion.specials)
        [message] = self._shown([{"role": "assistant", "refusal": None, **parts}])
        end = self._end(finish(completion), parser)
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

    def _end(self, end: dict[str, Any], parser: MessageParser) -> dict[str, Any]:
        """How a choice ended, if calls were found in it."""
        if parser.num_calls and end["finish_reason"] == "stop":
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
