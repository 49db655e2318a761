"""Bad words: which tokens they are, and that they do not come, however the engine cuts and puts off its work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headway import LLM, SamplingParams
from headway.config import ConfigError
from headway.core.request import RequestRefused
from headway.engine.bad_words import banned_sequences
from headway.engine.outputs import RequestOutput
from headway.models.tiny import make_tiny
from tests.engine.builders import ScriptedExecutor, echo, make_engine
from tests.engine.test_real_tokenizers import load

PROMPTS = [f"the {name} and the other" for name in ("fox", "dog", "step", "token", "sun", "request")]


def words_of(kind: str, *words: str) -> list[list[str]]:
    """The banned sequences as pieces."""
    tokenizer = load(kind)
    return [
        [tokenizer.id_to_bytes(token).decode() for token in tokens] for tokens in banned_sequences(words, tokenizer)
    ]


def test_a_word_is_banned_with_a_space_in_front_and_without() -> None:
    assert words_of("byte-level", "wo") == [["wo"], [" wo"]]
    assert words_of("byte-level", "  wo") == [["wo"], [" wo"]]
    assert words_of("byte-level", "hello wo") == [["hello", " wo"], [" hello", " wo"]]


def test_a_word_that_is_split_with_a_space_in_front_is_banned_there_as_well() -> None:
    assert words_of("byte-level", "ll") == [["ll"]], "behind a space it ends in the same token"


def test_sentencepiece_has_a_third_way_within_a_word() -> None:
    assert words_of("sentencepiece", "wo") == [[" wo"], ["wo"]]


def test_words_of_white_space_and_special_tokens_are_words_too() -> None:
    assert words_of("byte-level", " ") == [[" "]]
    assert words_of("byte-level", "</s>") == [["</s>"]]


def test_what_cannot_come_because_of_another_word_is_left_out() -> None:
    assert words_of("byte-level", "hello wo", "hello") == [["hello"], [" hello"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny") / "m", vocab=400)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), num_blocks=200, block_size=4, weight_dtype="float32") as llm:
        yield llm


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **fields})


def tokens_of(outputs: Sequence[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


def holds(tokens: Sequence[int], banned: Sequence[int]) -> bool:
    return any(tuple(tokens[start : start + len(banned)]) == tuple(banned) for start in range(len(tokens)))


def pairs_and_triples(outputs: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Sequences that came, to be banned."""
    return tuple(tuple(tokens[place : place + 2 + place % 2]) for tokens in outputs for place in range(0, 20, 5))


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 5, "top_k": 8}], ids=str)
def test_what_came_does_not_come_once_it_is_banned(llm: LLM, sampling: dict[str, Any]) -> None:
    free = tokens_of(llm.generate(PROMPTS, params(**sampling)))
    banned = pairs_and_triples(free)

    kept = tokens_of(llm.generate(PROMPTS, params(bad_token_ids=banned, **sampling)))

    assert not any(holds(tokens, each) for tokens in kept for each in banned)
    assert kept != free


def test_a_word_that_came_does_not_come_once_it_is_bad(llm: LLM) -> None:
    [free] = llm.generate("the", params(temperature=0.0))
    assert llm.engine.tokenizer is not None
    tokens = free.outputs[0].token_ids
    place, word = next(
        (place, text) for place, token in enumerate(tokens) if (text := llm.engine.tokenizer.decode([token])).isalpha()
    )

    [kept] = llm.generate("the", params(temperature=0.0, bad_words=(word,)))

    assert tokens[place] not in kept.outputs[0].token_ids
    assert kept.outputs[0].token_ids[:place] == tokens[:place]


def test_bad_words_hold_in_chunks_and_through_preemption(folder: Path, llm: LLM) -> None:
    banned = pairs_and_triples(tokens_of(llm.generate(PROMPTS, params(temperature=1.0, seed=1))))
    wanted = [params(temperature=1.0, seed=1, bad_token_ids=banned[: 4 * number]) for number in range(len(PROMPTS))]
    expected = tokens_of(llm.generate(PROMPTS, wanted))
    small: dict[str, Any] = {
        "num_blocks": 20,
        "block_size": 4,
        "weight_dtype": "float32",
        "max_num_batched_tokens": 16,
        "max_num_seqs": 6,
    }

    for options in ({}, {"swap_space_gib": 0.01, "preemption_mode": "swap"}):
        with LLM(str(folder), **small, **options) as pressed:
            outputs = pressed.generate(PROMPTS, wanted)

        assert sum(output.metrics.num_preemptions for output in outputs if output.metrics) > 2
        assert tokens_of(outputs) == expected


def test_the_prompt_does_not_count(llm: LLM) -> None:
    [free] = llm.generate([[5, 6]], params(temperature=0.0))
    first = free.outputs[0].token_ids[0]

    [kept] = llm.generate([[5, 6]], params(temperature=0.0, bad_token_ids=((6, first),)))

    assert kept.outputs[0].token_ids[0] == first


def test_a_request_that_may_say_nothing_fails_alone(llm: LLM) -> None:
    everything = tuple((token,) for token in range(llm.engine.vocab_size))

    silent, other = llm.generate(["a", "b"], [params(bad_token_ids=everything), params(max_tokens=3)])

    assert silent.finish_reason == "error" and silent.error is not None
    assert "bad words" in silent.error.message
    assert len(other.outputs[0].token_ids) == 3


@pytest.mark.parametrize(
    "fields", [{"bad_words": ("",)}, {"bad_token_ids": ((),)}, {"bad_token_ids": ((3, -1),)}], ids=str
)
def test_bad_words_that_are_none_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="bad_"):
        SamplingParams(**fields)


def test_bad_tokens_outside_the_vocabulary_and_words_without_a_tokenizer_are_refused(llm: LLM) -> None:
    engine = make_engine(ScriptedExecutor(echo))
    engine.tokenizer = None
    with pytest.raises(RequestRefused, match="no tokenizer"):
        engine.prepare([1], SamplingParams(bad_words=("x",)), request_id="r")
    with pytest.raises(RequestRefused, match=r"bad_token_ids names token 400; ids go from 0 to 399"):
        llm.generate("x", SamplingParams(bad_token_ids=((1, 400),)))
