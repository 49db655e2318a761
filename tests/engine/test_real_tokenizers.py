"""Streams over the kinds of tokenizers that models bring: byte-level, and SentencePiece with bytes for the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from transformers import PreTrainedTokenizerFast

from headway.config import SamplingParams
from headway.engine.detokenizer import TokenBytes
from headway.engine.text_stream import TextStream
from headway.models.loading.tokenizer import FastTokenizer

MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("w", "o")]


def byte_level() -> Tokenizer:
    """As GPT-2 and Llama 3."""
    space = "\u0120"
    merges = [*MERGES, (space, "wo"), (space, "hello")]
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    tokenizer = Tokenizer(BPE({piece: place for place, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece(*, prefix: bool = True) -> Tokenizer:
    """As Llama 2: a space in front of every text, and bytes for characters that have no piece. Gemma adds no space."""
    space = "\u2581"
    merges = [*MERGES, (space, "wo"), (space, "hello")]
    letters = sorted({letter for pair in MERGES for piece in pair for letter in piece} | {space})
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    pieces += [left + right for left, right in merges]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    to_space, to_text = normalizers.Replace(" ", space), [decoders.Replace(space, " "), decoders.ByteFallback()]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(space), to_space]) if prefix else to_space
    stripped = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([*to_text, decoders.Fuse(), *stripped])
    return tokenizer


def normalising() -> Tokenizer:
    """As Qwen: composes characters before it splits a text into bytes."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def unigram() -> Tokenizer:
    """As T5: pieces by likelihood, white space as a sign in front of words."""
    pieces = [
        ("<unk>", 0.0),
        ("\u2581", -3.0),
        ("\u2581hello", -1.0),
        ("\u2581wo", -1.5),
        *((char, -4.0) for char in "helowrd"),
    ]
    tokenizer = Tokenizer(Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return tokenizer


def wordpiece() -> Tokenizer:
    """As BERT: small letters, words in pieces, no white space."""
    pieces = ["[UNK]", "hello", "wo", "rl", "##rl", "##d", ".", "h", "##e"]
    tokenizer = Tokenizer(WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


LOSSY: dict[str, Callable[[], Tokenizer]] = {"normalising": normalising, "unigram": unigram, "wordpiece": wordpiece}
"""Kinds that do not give back every text."""
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "sentencepiece": sentencepiece,
    "sentencepiece without prefix": functools.partial(sentencepiece, prefix=False),
}


@functools.cache
def load(kind: str) -> FastTokenizer:
    inner = (KINDS | LOSSY)[kind]()
    inner.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    return FastTokenizer(kind, Path(kind), wrapped, ())


def stream(tokenizer: FastTokenizer, prompt: list[int], tokens: list[int]) -> list[str]:
    text = TextStream(SamplingParams(), TokenBytes(tokenizer, skip_special_tokens=True), prompt)
    pieces = []
    for token in tokens:
        text.push(token)
        pieces.append(text.take().text)
    text.finish()
    return [*pieces, text.take().text]


TEXTS = st.text(st.sampled_from("hello wo é€😀"), max_size=20)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, cut=st.integers(0, 40))
def test_a_stream_joined_is_the_decoding_of_everything_less_the_prompt(kind: str, text: str, cut: int) -> None:
    tokenizer = load(kind)
    tokens = tokenizer.encode("hello " + text)
    prompt, output = tokens[: cut + 1], tokens[cut + 1 :]

    pieces = stream(tokenizer, prompt, output)

    whole = tokenizer.decode(tokens)
    assert whole == "hello " + text
    # Not tokenizer.decode: with half a character in the end, byte fallback spoils the whole ones before it, too.
    shown = b"".join(map(tokenizer.id_to_bytes, prompt)).decode(errors="ignore")
    shown = shown.removeprefix(" ") if kind == "sentencepiece" else shown
    assert shown + "".join(pieces) == whole
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_keeps_the_space_that_parts_it_from_the_prompt(kind: str) -> None:
    tokenizer = load(kind)
    prompt = tokenizer.encode("hello")
    output = tokenizer.encode("hello wo")[len(prompt) :]

    assert "".join(stream(tokenizer, prompt, output)) == " wo"


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_cut_off_in_the_end_is_a_replacement(kind: str) -> None:
    tokenizer = load(kind)
    output = tokenizer.encode("hello€")[:-1]

    pieces = stream(tokenizer, [tokenizer.bos_token_id or 0], output)

    assert "".join(pieces).strip() == "hello\ufffd"
    assert "\ufffd" not in "".join(pieces[:-1])


@pytest.mark.parametrize("kind", LOSSY)
@pytest.mark.parametrize("text", ["hello", "hello wo", "Hello world.", "hello  hello wo", "e\u0301 hello"])
def test_a_lossy_tokenizers_stream_is_its_decoding_less_the_prompt(kind: str, text: str) -> None:
    tokenizer = load(kind)
    tokens = tokenizer.encode("hello " + text)

    for cut in range(1, len(tokens)):
        if tokenizer.decode(tokens).startswith(before := tokenizer.decode(tokens[:cut])):
            assert before + "".join(stream(tokenizer, tokens[:cut], tokens[cut:])) == tokenizer.decode(tokens)
