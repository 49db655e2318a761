"""Text to token ids and back: one small interface over what a Hugging Face folder or a GGUF file brings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headway.models.loading.chat_template import (
    DEFAULT,
    ChatTemplate,
    TemplateBroken,
    describe_asked,
    describe_template,
    find_template,
)
from headway.models.loading.errors import BadTokenizer, ChatTemplateError
from headway.models.loading.roles import Roles
from headway.models.loading.safetensors_folder import read_json
from headway.models.loading.source import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Names under which chat models end a turn. Counted as an end only if the chat template writes the token.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>")

# Decoders under which a token is its own text, "\u2581" for a space and "<0x0A>" for a byte.
_PLAIN_DECODERS = ("Metaspace", "ByteFallback", "Replace")

# From here on, an error of transformers repeats the whole prompt.
_REPEATS_PROMPT = "Final message to continue:"

LONG = 2000
"""Characters or ids: beyond, Python's lock is given up meanwhile, so that other threads need not wait."""

Message = Mapping[str, Any]


class Tokenizer(Protocol):
    """What the engine and the server need of a tokenizer.

    Attributes:
        name: the model it belongs to.
        vocab_size: one more than the largest id it knows. The model's embedding may have more rows.
        bos_token_id: id that begins a text, if there is one.
        eos_token_ids: ids that end a text or a turn; may be empty.
        special_token_ids: ids that stand for no text, such as the two above.
        chat_template: text of the model's chat template, or of all of them; empty if there is none.
    """

    name: str
    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    special_token_ids: frozenset[int]
    chat_template: str

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of ``text``. Special tokens spelled out in it become their ids.

        Args:
            text: any text.
            add_special_tokens: also put the beginning-of-text id in front, if this model wants one.
        """
        ...

    def token_places(self, text: str) -> list[int]:
        """Where each id of ``encode(text)`` begins in ``text``, in characters, ascending.

        From there to the next is the part of the text that an id stands for, also where it is written otherwise in the
        vocabulary; nothing for ids that were added.
        """
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``. Bytes that are no whole character become U+FFFD; ids that are not known, nothing."""
        ...

    def id_to_bytes(self, token_id: int) -> bytes:
        """UTF-8 bytes that one id adds to a text, for joining a stream; empty for ids that are not known.

        The bytes of several ids, joined, decode to :meth:`decode` of them with special tokens kept. One exception:
        models with a SentencePiece vocabulary drop the space in front of a text that :meth:`decode` starts with.
        """
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt for a conversation, as the model's own template writes it, special tokens included.

        Args:
            messages: mappings with "role" and "content". The roles "developer" and "function" become "system" and
                "tool" if the template does not name them.
            add_generation_prompt: end with what opens the assistant's turn.
            tools: JSON schemas of functions the model may call, for templates that know them.
            variables: more that the template knows, by name.
            continue_final_message: end within the last message, behind its text, so that the model goes on with it;
                then without what opens a turn.

        Raises:
            ChatTemplateError: the model has no template, or its template refuses the messages or leaves one out; or a
                role is not known.
        """
        ...

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of :meth:`apply_chat_template`; its text has all special tokens already, so none are added."""
        ...


def load_tokenizer(
    source: ModelSource, *, cache_dir: str | os.PathLike[str] | None = None, chat_template: str | None = None
) -> FastTokenizer:
    """The tokenizer of the model at ``source``.

    Args:
        source: from :func:`~headway.models.loading.source.resolve_model`.
        cache_dir: folder for tokenizers that had to be converted, which those of some GGUF files are, once.
        chat_template: to be used instead of the model's: a name, a file or a text, see
            :func:`~headway.models.loading.chat_template.find_template`.

    Raises:
        BadTokenizer: it is absent, damaged or of a kind not read here.
        BadModelFile: the file it should come from is damaged.
        ConfigError: there is no such chat template, or it does not work.
    """
    inner, eos_ids = _inner_tokenizer(source, cache_dir)
    note = _choose_template(inner, chat_template)
    return FastTokenizer(source.name, source.path, inner, eos_ids, note)


def _inner_tokenizer(
    source: ModelSource, cache_dir: str | os.PathLike[str] | None
) -> tuple[PreTrainedTokenizerFast, tuple[int, ...]]:
    """The tokenizer, and what the model's files call the end of a text."""
    if source.kind == "gguf":
        from headway.models.loading.gguf_file import GgufFile
        from headway.models.loading.gguf_model import gguf_eos_ids
        from headway.models.loading.gguf_tokenizer import gguf_tokenizer

        file = GgufFile(source.path)
        return gguf_tokenizer(file, cache_dir), gguf_eos_ids(file)
    return _folder_tokenizer(source.path), _folder_eos_ids(source.path)


def _choose_template(inner: PreTrainedTokenizerFast, asked: str | None) -> str:
    """Set the template that was asked for; say which one is used, and whether it works.

    Raises:
        ConfigError: see :func:`load_tokenizer`. A model's own template that is broken is only told, since the model
            can be used without.
    """
    special = {name: str(token) for name, token in inner.special_tokens_map.items()}
    own = own_templates(inner)
    if asked is not None:
        template = find_template(asked, own)
        assert template is not None, "the model's templates are known"
        inner.chat_template = template.text
        return describe_asked(asked, template, special)
    if not own:
        return "none, so chats are refused; the option chat_template can give one"
    notes = []
    for name, text in own.items():
        origin = "the model's" if len(own) == 1 else f"the model's {name!r}"
        try:
            notes.append(describe_template(ChatTemplate(origin, text), special))
        except TemplateBroken as error:
            notes.append(f"warning: {origin} is broken ({error}); the option chat_template can replace it")
    return "; ".join(notes)


def own_templates(inner: PreTrainedTokenizerFast) -> dict[str, str]:
    """The model's chat templates by name; empty if it has none."""
    template = inner.chat_template or {}
    return {DEFAULT: template} if isinstance(template, str) else dict(template)


def _folder_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        inner = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # damaged files surface as errors of many libraries
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadTokenizer(folder, f"has no tokenizer that can be read ({reason})") from error
    if not isinstance(inner, PreTrainedTokenizerFast):
        raise BadTokenizer(
            folder, f"has a tokenizer of a kind not read here ({type(inner).__name__}), no tokenizer.json"
        )
    return inner


def _folder_eos_ids(folder: Path) -> tuple[int, ...]:
    """End ids out of generation_config.json and config.json, both of which may name one or several."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            ids += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(ids))


class FastTokenizer:
    """A :class:`Tokenizer` over a tokenizer of the ``tokenizers`` library, in its transformers wrapping.

    Args:
        name: the model it belongs to.
        path: where it came from, for errors.
        inner: the tokenizer. Ids come straight from its backend; the wrapping renders chat templates.
        eos_token_ids: what the model's files call the end of a text; the tokenizer's own is added.
        template_note: which chat template is used and what it can do, in words.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        inner: PreTrainedTokenizerFast,
        eos_token_ids: Sequence[int],
        template_note: str = "",
    ) -> None:
        self.name = name
        self.template_note = template_note
        self._path = path
        self._inner = inner
        self._backend = inner.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise BadTokenizer(path, "has an empty vocabulary")
        self.vocab_size = max(vocabulary.values()) + 1
        self._added = self._backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token_id for token_id, token in self._added.items() if token.special)
        self.bos_token_id: int | None = inner.bos_token_id
        self.chat_template = "\n".join(own_templates(inner).values())
        self._roles = Roles(name, self.chat_template)
        own = () if inner.eos_token_id is None else (inner.eos_token_id,)
        self.eos_token_ids = tuple(dict.fromkeys((*eos_token_ids, *own, *self._turn_ends())))
        decoder = repr(self._backend.decoder)
        self._byte_level = "ByteLevel" in decoder
        # What other decoders make of a token is seen by decoding it behind another one.
        joins = not self._byte_level and not any(name in decoder for name in _PLAIN_DECODERS)
        self._anchor = self._find_anchor(vocabulary) if joins else None
        self._byte_of = {char: byte for byte, char in byte_alphabet().items()}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if len(text) > LONG:  # in a batch, the library lets go of Python's lock
            encoded = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        else:
            encoded = self._backend.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoded.ids
        return ids

    def token_places(self, text: str) -> list[int]:
        encoded = self._backend.encode_batch([text])[0] if len(text) > LONG else self._backend.encode(text)
        places: list[int] = []
        end = 0
        for (start, stop), is_added in zip(encoded.offsets, encoded.special_tokens_mask, strict=True):
            if is_added:
                places.append(end)
                continue
            # White space in a gap belongs to this token, all else, such as an accent, to the one before. Tokens of one
            # character have the same place.
            places.append(start if text[end:start].strip() else min(start, end))
            end = max(end, stop)
        return places

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        if len(ids) > LONG:
            texts: list[str] = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
            return texts[0]
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def id_to_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            content: str = self._added[token_id].content
            return content.encode()
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            return b"".join(bytes((self._byte_of[c],)) if c in self._byte_of else c.encode() for c in token)
        if self._anchor is not None:
            before, both = self.decode([self._anchor]), self.decode([self._anchor, token_id])
            return both.removeprefix(before).encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode()

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        if not self._inner.chat_template:
            raise ChatTemplateError(f"model {self.name!r} has no chat template; use plain completion with it")

        def render(conversation: Sequence[Message]) -> str:
            return self._render(conversation, opens_turn, tools, variables, continue_final_message)

        opens_turn = add_generation_prompt and not continue_final_message

        cast = self._roles.cast(messages)
        text = render(cast)
        self._roles.check_heard(cast, render, f"{bool(tools)} {opens_turn} {continue_final_message} {variables}")
        return text

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
        continue_final_message: bool,
    ) -> str:
        try:
            text = self._inner.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                **(variables or {}),
            )
        except Exception as error:  # templates are programs and fail in every way a program can
            reason = str(error).partition(_REPEATS_PROMPT)[0]
            raise ChatTemplateError(f"the chat template of {self.name!r} refuses these messages: {reason}") from error
        return str(text)

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        text = self.apply_chat_template(messages, add_generation_prompt, tools, variables)
        return self.encode(text, add_special_tokens=False)

    def _find_anchor(self, vocabulary: Mapping[str, int]) -> int | None:
        """The first token of letters only, behind which others are decoded; ``None`` if there is none."""
        ordinary = (token_id for token, token_id in vocabulary.items() if token.isalpha())
        return min((token_id for token_id in ordinary if token_id not in self._added), default=None)

    def _turn_ends(self) -> list[int]:
        ids = {token.content: token_id for token_id, token in self._added.items() if token.special}
        return [ids[name] for name in _TURN_ENDS if name in ids and name in self.chat_template]


def byte_alphabet() -> dict[int, str]:
    """The character that stands for each byte in a byte-level vocabulary, as GPT-2 laid down.

    Bytes that print in Latin-1 stand for themselves; the other 68 take the characters from U+0100 on, in order.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {byte: chr(byte) for byte in printing} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}
