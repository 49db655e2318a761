"""Answers of ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.logprobs import TokenLogprobs
from headway.engine.outputs import RequestOutput, RequestUpdate
from headway.server.answers.base import Answer, Choice, finish
from headway.server.answers.tokens import Offsets, echoed, finite, prompt_places, token_text

SCORED = {"finish_reason": "length", "stop_reason": None}
"""The end of a choice that has no output."""


class CompletionAnswer(Answer):
    """Choices with a "text", and log probabilities as parallel lists."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._begun: set[int] = set()
        self._offsets: dict[int, Offsets] = {}

    def choices_of(self, index: int, update: RequestUpdate) -> list[Choice]:
        choices = []
        if self.spec.echo and index not in self._begun:
            prompt = index // self.spec.candidates
            if update.text or update.output is not None or not self._prompt_ends[prompt]:
                self._begun.add(index)
                text = "" if self.spec.scores_only else update.text
                choices.append(self._chunk(index, self._echoed(prompt, text, update.token_ids)))
        if not self.spec.scores_only and (update.text or (update.token_ids and self._shows_tokens)):
            choices.append(self._chunk(index, update.text, update))
        if update.output is not None:
            end = SCORED if self.spec.scores_only else finish(update.output.outputs[0])
            choices.append({**self._chunk(index, ""), **end})
        return choices

    def choice(self, index: int, output: RequestOutput) -> Choice:
        completion = output.outputs[0]
        text, token_ids, end = completion.text, completion.token_ids, finish(completion)
        entries: Sequence[TokenLogprobs | None] = completion.logprobs or ()
        if self.spec.scores_only:
            text, token_ids, entries, end = "", (), (), SCORED
        prompt, before = index // self.spec.n, ""
        if self.spec.echo:
            before = self._echoed(prompt, text, token_ids)
        offsets = Offsets(self._text_bytes, self._prompt_ends[prompt], len(before))
        places = [offsets.next(token_id) for token_id in token_ids] if self.spec.wants_logprobs else []
        if self.spec.echo:
            entries = (*(output.prompt_logprobs or ()), *entries)
            if self.spec.wants_logprobs:
                places = self._prompt_places(prompt, output.prompt_token_ids, before) + places
            token_ids = output.prompt_token_ids + token_ids
        choice: Choice = {"index": index, "text": before + text, "logprobs": None, **end}
        if self.spec.wants_logprobs:
            choice["logprobs"] = self._logprobs(token_ids, entries, places)
        if self.spec.return_token_ids:
            choice["token_ids"] = list(token_ids)
        return choice

    def _echoed(self, prompt: int, text: str, token_ids: Sequence[int]) -> str:
        return echoed(self._prompts[prompt].text, self._prompt_ends[prompt], text, token_ids, self._text_bytes)

    def _prompt_places(self, prompt: int, token_ids: Sequence[int], shown: str) -> list[int]:
        """Where the tokens of a prompt begin in it, as it is shown."""
        if isinstance(self.spec.prompts[prompt], str):
            return list(self._prompts[prompt].places)
        return prompt_places(token_ids, shown, self._text_bytes, self._special_token_ids)

    @property
    def _shows_tokens(self) -> bool:
        return self.spec.wants_logprobs or self.spec.return_token_ids

    def _chunk(self, index: int, text: str, update: RequestUpdate | None = None) -> Choice:
        choice: Choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        if update is None:
            return choice
        if self.spec.wants_logprobs:
            end = self._prompt_ends[index // self.spec.candidates]
            offsets = self._offsets.setdefault(index, Offsets(self._text_bytes, end))
            places = [offsets.next(token_id) for token_id in update.token_ids]
            choice["logprobs"] = self._logprobs(update.token_ids, update.logprobs or (), places)
        if self.spec.return_token_ids:
            choice["token_ids"] = list(update.token_ids)
        return choice

    def _logprobs(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None], places: Sequence[int]
    ) -> dict[str, Any]:
        """Parallel lists, one entry per token; the first token of a prompt has no probability."""
        return {
            "tokens": [token_text(self._bytes_of(token_id)) for token_id in token_ids],
            "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
            "text_offset": list(places),
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and, whether it is one of them or not, the one that was taken."""
        top: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token, entry.logprob)):
            top.setdefault(token_text(self._bytes_of(token_id)), finite(logprob))
        return top
