"""Text to token ids without holding up the event loop: short texts at once, long ones in a thread, in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from headway.core.plan import Int32
from headway.core.request import PromptTooLong, RequestRefused
from headway.engine.detokenizer import unfinished_end
from headway.models.loading import ChatTemplateError, Tokenizer
from headway.server.protocol.fields import note_taken
from headway.server.spec import MOST_CHARS_PER_TOKEN, ChatPrompt, PromptInput
from headway.server.variables import variables_of

_Result = TypeVar("_Result")

TokenIds = Int32 | tuple[int, ...]
"""What the tokenizer made, or what the client gave, which may be anything."""

INLINE_CHARS = 4000
"""Texts of a call up to this length are tokenised at once, in about a millisecond: a thread would cost as much."""


class Tokenising:
    """Tokenises the prompts of calls.

    Args:
        tokenizer: safe to use from two threads at once; ``None`` if prompts are token ids only.
        max_model_len: a prompt that has far more tokens is told so before all of it is tokenised.
    """

    def __init__(self, tokenizer: Tokenizer | None, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._template_variables = variables_of(tokenizer.chat_template if tokenizer is not None else "")
        special = sorted(tokenizer.special_token_ids) if tokenizer is not None else ()
        self.special_ids = {self.bytes_of(token_id).decode(errors="replace"): token_id for token_id in special}
        """Ids of special tokens, by their texts."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenise")
        self._side_thread = ThreadPoolExecutor(1, thread_name_prefix="tokenise-on-request")
        self._turn = asyncio.Lock()

    async def encode(self, prompts: Sequence[PromptInput], before: Callable[[], None]) -> list[TokenIds]:
        """Token ids of each prompt; those given as ids are passed on unchecked.

        Args:
            prompts: of one call.
            before: called when its turn comes, right before the work; may raise.

        Raises:
            RequestRefused: a prompt cannot be tokenised.
        """
        if sum(map(_num_chars, prompts)) <= INLINE_CHARS:
            before()
            return self._encode_all(prompts)
        async with self._turn:
            before()
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._encode_all, prompts)

    async def tokens_of(self, prompt: str | ChatPrompt, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of one text or conversation of any length; prompts of calls do not wait for it.

        Raises:
            RequestRefused: it cannot be tokenised.
        """

        def work() -> list[int]:
            if isinstance(prompt, ChatPrompt):
                return self._encode_chat(prompt, any_length=True)
            return self._encode_text(prompt, add_special_tokens=add_special_tokens, any_length=True)

        return await self.aside(work, _num_chars(prompt))

    async def texts_of(self, all_ids: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Texts of ids.

        Raises:
            RequestRefused: there is no tokenizer.
        """

        def work() -> list[str]:
            return [self.decode(ids, skip_special_tokens=skip_special_tokens) for ids in all_ids]

        return await self.aside(work, sum(map(len, all_ids)))

    async def places_of(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Where each token of each text begins in it, in characters.

        Raises:
            RequestRefused: there is no tokenizer.
        """
        places = self._required("tokens").token_places
        return await self.aside(lambda: [places(text) for text in texts], sum(map(len, texts)))

    async def aside(self, work: Callable[[], _Result], size: int) -> _Result:
        """Do other work with a tokenizer: here and now if it is on few characters or ids, else in a thread."""
        if size <= INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._side_thread, work)

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to a text; nothing if there is no tokenizer."""
        return self._tokenizer.id_to_bytes(token_id) if self._tokenizer is not None else b""

    def close(self) -> None:
        """Take no more work."""
        for thread in (self._thread, self._side_thread):
            thread.shutdown(wait=False, cancel_futures=True)

    def _encode_text(self, text: str, *, add_special_tokens: bool = True, any_length: bool = False) -> list[int]:
        """Ids of a prompt, here and now.

        Raises:
            RequestRefused: there is no tokenizer, or the text cannot be encoded; or it is far too long.
        """
        tokenizer = self._required("text")
        try:
            if any_length:
                return tokenizer.encode(text, add_special_tokens=add_special_tokens)
            self._refuse_far_too_long(tokenizer, text)
            ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeError) as error:
            raise RequestRefused("prompt", "text", None, f"the prompt cannot be encoded: {error}") from error
        if len(ids) >= self._max_model_len:  # here already, so that no more prompts of the call are tokenised
            raise PromptTooLong.for_model(len(ids), self._max_model_len)
        return ids

    def _refuse_far_too_long(self, tokenizer: Tokenizer, text: str) -> None:
        """Tokenise the beginning of a very long text; if that alone is twice too long, the whole is too long as well.

        Cutting a text changes tokens around the cut, and never halves their number.
        """
        beginning = self._max_model_len * MOST_CHARS_PER_TOKEN
        if len(text) < 2 * beginning:
            return
        num_tokens = len(tokenizer.encode(text[:beginning], add_special_tokens=False))
        longest = self._max_model_len - 1
        if num_tokens > 2 * self._max_model_len:
            message = (
                f"the prompt has {len(text)} characters, the first {beginning} of which are {num_tokens} tokens; with"
                f" max_model_len={self._max_model_len} at most {longest} tokens leave room for an output"
            )
            raise PromptTooLong(num_tokens, longest, message)

    def _encode_chat(self, prompt: ChatPrompt, *, any_length: bool = False) -> list[int]:
        """Ids of a conversation, here and now.

        Raises:
            RequestRefused: there is no tokenizer, or its template refuses the messages; or they are far too long.
        """
        try:
            tokenizer, variables = self._required("messages"), self._known(prompt.variables)
            more: dict[str, Any] = {"variables": variables} if variables else {}
            if not prompt.add_generation_prompt:
                more["add_generation_prompt"] = False
            if prompt.continue_final_message:
                more["continue_final_message"] = True
            text = tokenizer.apply_chat_template(prompt.messages, tools=prompt.tools or None, **more)
        except ChatTemplateError as error:
            raise RequestRefused("prompt", len(prompt.messages), None, str(error)) from error
        return self._encode_text(text, add_special_tokens=False, any_length=any_length)  # the template writes them

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids, here and now. If they end within a character, it has one U+FFFD for that, whatever the tokenizer
        writes.

        Raises:
            RequestRefused: there is no tokenizer.
        """
        tokenizer = self._required("tokens")
        hidden = tokenizer.special_token_ids if skip_special_tokens else frozenset()

        def bytes_of(token_id: int) -> bytes:
            return b"" if token_id in hidden else tokenizer.id_to_bytes(token_id)

        whole = len(ids)
        while unfinished_end(bytes_of, ids[:whole]):
            whole -= 1
        text = tokenizer.decode(ids[:whole], skip_special_tokens=skip_special_tokens)
        return text + b"".join(map(bytes_of, ids[whole:])).decode(errors="replace")

    def _known(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Those variables that the chat template knows; if none, the log says once that they have no effect."""
        known = {name: value for name, value in variables.items() if name in self._template_variables}
        if variables and not known:
            note_taken("chat_template_kwargs, or one that stands for it,", "the chat template knows no such variable")
        return known

    def _required(self, what: str) -> Tokenizer:
        if self._tokenizer is None:
            raise RequestRefused("prompt", what, None, "this engine has no tokenizer: prompts must be token ids")
        return self._tokenizer

    def _encode_all(self, prompts: Sequence[PromptInput]) -> list[TokenIds]:
        return [self._encode(prompt) for prompt in prompts]

    def _encode(self, prompt: PromptInput) -> TokenIds:
        if isinstance(prompt, str):
            return np.array(self._encode_text(prompt), np.int32)
        if isinstance(prompt, ChatPrompt):
            return np.array(self._encode_chat(prompt), np.int32)
        return prompt


def _num_chars(prompt: PromptInput) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    return prompt.num_chars if isinstance(prompt, ChatPrompt) else 0
