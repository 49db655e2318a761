"""What completion and chat answers have in common: the envelope, the usage, how an end is named."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headway.core.request import FinishReason
from headway.engine.detokenizer import unfinished_end
from headway.engine.outputs import CompletionOutput, RequestOutput, RequestUpdate
from headway.server.spec import CallSpec, EchoedPrompt
from headway.server.tokenising import TokenIds

Choice = dict[str, Any]

_BYTES_PER_TOKEN, _BYTES_PER_LOGPROB = 8, 32


class Answer(ABC):
    """Makes the answer to one call, whole or in chunks.

    Generations are numbered prompt by prompt; so are choices, of which there are fewer if ``best_of`` is larger than
    ``n``. Streams have a choice per generation.

    Args:
        spec: of the call.
        request_id: of the call.
        model: name to show.
        bytes_of: the tokenizer's ``id_to_bytes``, and the ids that leave no text.
    """

    whole_object: str
    chunk_object: str

    def __init__(
        self,
        spec: CallSpec,
        request_id: str,
        model: str,
        bytes_of: Callable[[int], bytes],
        special_token_ids: frozenset[int],
    ) -> None:
        self.spec = spec
        self._envelope = {"id": request_id, "object": "", "created": int(time.time()), "model": model}
        self._bytes_of = bytes_of
        self._special_token_ids = special_token_ids if spec.sampling.skip_special_tokens else frozenset()
        self._prompts: Sequence[EchoedPrompt] = ()
        self._prompt_ends: Sequence[bytes] = ()
        """Of each prompt the bytes of a character that it begins and does not complete."""
        self._num_prompt_tokens = self._num_generated = 0
        self._reasoning_is_open = False

    def set_prompts(
        self, echoed: Sequence[EchoedPrompt], prompts: Sequence[TokenIds], *, reasoning_is_open: bool
    ) -> None:
        """Take what is known before there is any output.

        Args:
            echoed: the prompts as they are repeated, if they are.
            prompts: as tokens.
            reasoning_is_open: whether the outputs begin within reasoning.
        """
        self._prompts = echoed
        self._prompt_ends = [unfinished_end(self._text_bytes, prompt) for prompt in prompts]
        self._num_prompt_tokens = sum(map(len, prompts))
        self._reasoning_is_open = reasoning_is_open

    @abstractmethod
    def choices_of(self, index: int, update: RequestUpdate) -> list[Choice]:
        """The chunks of choices that an update of generation ``index`` makes, in order."""

    @abstractmethod
    def choice(self, index: int, output: RequestOutput) -> Choice:
        """A whole choice."""

    def chunks(self, index: int, update: RequestUpdate) -> list[dict[str, Any]]:
        """The chunks of a stream that an update makes."""
        self._num_generated += len(update.token_ids)
        usage: dict[str, Any] = {"usage": None} if self.spec.include_usage else {}
        if self.spec.continuous_usage:
            usage = {"usage": self._counts(self._num_prompt_tokens, self._num_generated)}
        head = {**self._envelope, "object": self.chunk_object}
        return [{**head, "choices": [choice], **usage} for choice in self.choices_of(index, update)]

    def usage_chunk(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The last chunk of a stream that shows its usage."""
        return {**self._envelope, "object": self.chunk_object, "choices": [], "usage": self.usage(outputs)}

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The body of an answer that is not streamed; ``outputs`` by index of the generation."""
        candidates = self.spec.candidates
        choices: list[Choice] = []
        for first in range(0, len(outputs), candidates):
            for output in self._best(outputs[first : first + candidates]):
                choices.append(self.choice(len(choices), output))
        return {**self._envelope, "object": self.whole_object, "choices": choices, "usage": self.usage(outputs)}

    def num_bytes(self, outputs: Sequence[RequestOutput]) -> int:
        """About how large :meth:`whole` becomes, without making it."""
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        if self.spec.echo:
            num_tokens += sum(len(output.prompt_token_ids) for output in outputs)
        num_entries = 1 + (self.spec.sampling.logprobs or 0) if self.spec.wants_logprobs else 0
        return num_tokens * (_BYTES_PER_TOKEN + num_entries * _BYTES_PER_LOGPROB)

    def usage(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """Tokens: each prompt once, and all that was generated, choices that were not kept included."""
        firsts = outputs[:: self.spec.candidates]
        prompt = sum(len(output.prompt_token_ids) for output in firsts)
        cached = sum(output.metrics.num_cached_tokens for output in firsts if output.metrics is not None)
        generated = sum(len(output.outputs[0].token_ids) for output in outputs)
        usage = {**self._counts(prompt, generated), "prompt_tokens_details": {"cached_tokens": cached}}
        details = self._completion_details(outputs)
        return {**usage, "completion_tokens_details": details} if details else usage

    def _completion_details(self, outputs: Sequence[RequestOutput]) -> dict[str, int]:
        """What the generated tokens are, as far as that can be told."""
        return {}

    def _counts(self, prompt: int, generated: int) -> dict[str, Any]:
        completion = 0 if self.spec.scores_only else generated
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _best(self, outputs: Sequence[RequestOutput]) -> Iterable[RequestOutput]:
        """Those of one prompt with the highest mean log probability; the earlier one of two equal ones."""
        if self.spec.n == len(outputs):
            return outputs
        return sorted(outputs, key=_mean_logprob, reverse=True)[: self.spec.n]

    def _text_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text."""
        token_id = int(token_id)
        return b"" if token_id in self._special_token_ids else self._bytes_of(token_id)


def finish(completion: CompletionOutput) -> dict[str, Any]:
    """How a choice ended: OpenAI's reason, and what exactly it was."""
    if completion.finish_reason == FinishReason.KV_CAPACITY.value:
        return {"finish_reason": "length", "stop_reason": completion.finish_reason}
    return {"finish_reason": completion.finish_reason, "stop_reason": completion.stop_reason}


def _mean_logprob(output: RequestOutput) -> float:
    entries = [entry.logprob for entry in output.outputs[0].logprobs or () if entry is not None]
    return sum(entries) / len(entries) if entries else float("-inf")
