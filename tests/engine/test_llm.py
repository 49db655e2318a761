"""LLM: prompts in any form, outputs in their order, streams, refusals, stop strings, errors, and calls in a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headway.config import ConfigError, SamplingParams
from headway.core.plan import StepPlan
from headway.core.request import RequestRefused
from headway.engine.engine import EngineStalled
from headway.engine.llm import OfflineLLM, PromptRefused
from headway.engine.outputs import RequestUpdate
from headway.sim.fake import FakeExecutor
from tests.engine.builders import BOS, EOS, ByteTokenizer, ScriptedExecutor, echo, make_engine, measured


def make_llm(script: Any = echo, *, tokenizer: ByteTokenizer | None = None, **options: Any) -> OfflineLLM:
    """An LLM that says what the script says; without one, every prompt again and again."""
    executor = ScriptedExecutor(script, **{name: options.pop(name) for name in ("before", "during") if name in options})
    return OfflineLLM(make_engine(executor, tokenizer=tokenizer, **options))


def says(text: str | bytes) -> Any:
    """A script: every request says this."""
    data = text if isinstance(text, bytes) else text.encode()
    return lambda request_id, prompt: list(data)


FOUR = SamplingParams(max_tokens=4)


# --- prompts and order -------------------------------------------------------------------------------------


def test_outputs_come_in_the_order_of_the_prompts_whatever_ends_first() -> None:
    params = [SamplingParams(max_tokens=length) for length in (9, 1, 5, 2, 7)]

    outputs = make_llm(max_num_seqs=2).generate(["abc", "def", "ghi", "jkl", "mno"], params)

    assert [output.text for output in outputs] == ["abcabcabc", "d", "ghigh", "jk", "mnomnom"]
    assert [output.prompt for output in outputs] == ["abc", "def", "ghi", "jkl", "mno"]
    assert {output.finish_reason for output in outputs} == {"length"}


@pytest.mark.parametrize(
    ("prompts", "texts"),
    [
        ("abc", ["abca"]),
        ([97, 98], ["abab"]),
        (np.array([97, 98]), ["abab"]),
        (["ab", [99]], ["abab", "cccc"]),
        ([[97], (98,), np.array([99], np.int64)], ["aaaa", "bbbb", "cccc"]),
        ([], []),
    ],
)
def test_prompts_are_text_or_token_ids_one_or_many(prompts: Any, texts: list[str]) -> None:
    assert [output.text for output in make_llm().generate(prompts, FOUR)] == texts


def test_two_calls_in_a_row_return_all_results() -> None:
    llm = make_llm()

    first = llm.generate(["ab", "cd"], FOUR)
    second = llm.generate(["ab", "ef", "gh"], FOUR)

    assert [output.text for output in first + second] == ["abab", "cdcd", "abab", "efef", "ghgh"]
    assert len({output.request_id for output in first + second}) == 5


def test_a_call_within_a_stream_gets_its_own_results_and_so_does_the_stream() -> None:
    llm = make_llm()
    stream = llm.stream("ab", SamplingParams(max_tokens=6))
    head = [next(stream)[1].text, next(stream)[1].text]

    (inner,) = llm.generate("cd", SamplingParams(max_tokens=6))
    tail = [update.text for _, update in stream]

    assert inner.text == "cdcdcd"
    assert "".join(head + tail) == "ababab"


def test_max_tokens_none_goes_to_the_model_length() -> None:
    (output,) = make_llm(max_model_len=20).generate("abc", SamplingParams(max_tokens=None))

    assert (len(output.outputs[0].token_ids), output.finish_reason) == (17, "length")


def test_lists_of_another_length_than_the_prompts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sampling_params=1 .* one per prompt \(2\)"):
        make_llm().generate(["a", "b"], [FOUR])
    with pytest.raises(ConfigError, match="priority"):
        make_llm().generate(["a", "b"], FOUR, priority=[1, 2, 3])


def test_priority_and_salt_reach_the_scheduler() -> None:
    llm = make_llm(max_num_seqs=1, scheduling_policy="priority")
    order = [index for index, update in llm.stream(["a", "b", "c"], FOUR, priority=[2, 1, 0]) if update.output]

    assert order == [2, 1, 0]
    salted = make_llm()
    cached = [
        salted.generate("abcdefghi", FOUR, cache_salt=salt)[0].metrics.num_cached_tokens  # type: ignore[union-attr]
        for salt in ("x", "y", "x")
    ]
    assert cached == [0, 0, 8]


def test_deadlines_and_tenants_reach_the_scheduler_prompt_by_prompt() -> None:
    def order(policy: str, prompts: list[str], **wishes: Any) -> list[int]:
        llm = make_llm(max_num_seqs=1, scheduling_policy=policy)
        return [index for index, update in llm.stream(prompts, FOUR, **wishes) if update.output]

    assert order("deadline", ["a", "b", "c"], deadline_s=[90.0, None, 30.0]) == [2, 0, 1]
    assert order("deadline", ["a", "b", "c"], slo=["batch", "interactive", "standard"]) == [1, 2, 0]
    assert order("fair", ["a", "b", "c"], tenant=["x", "x", "y"]) == [0, 2, 1]
    with pytest.raises(ConfigError, match="deadline_s"):
        order("deadline", ["a", "b"], deadline_s=[1.0])


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "field", "limit"),
    [
        ("", "prompt", None),
        ([], "prompt", None),
        ("x" * 128, "prompt", 127),
        ([1, 300], "prompt", 299),
        ([-1], "prompt", 299),
        ([2**40], "prompt", 299),
        ([1.5], "prompt", None),
        ([True, False], "prompt", None),
        (["a", 1], "prompt", None),
        ([[1], [2]], "prompt", None),
        (None, "prompt", None),
        (7, "prompt", None),
        ("\ud800", "prompt", None),
    ],
)
def test_a_bad_prompt_is_named_before_anything_runs(prompt: Any, field: str, limit: int | None) -> None:
    llm = make_llm()

    with pytest.raises(PromptRefused, match="prompt 1: ") as caught:
        llm.generate(["fine", prompt], FOUR)

    assert (caught.value.index, caught.value.field, caught.value.limit) == (1, field, limit)
    assert not llm.engine.has_work
    assert llm.engine.metrics.counters.requests_added == 0


def test_a_bad_prompt_becomes_an_error_output_if_wanted() -> None:
    llm = make_llm(num_blocks=5)

    outputs = llm.generate(["ab", "", "x" * 20, "cd"], FOUR, errors="return")

    assert [output.finish_reason for output in outputs] == ["length", "refused", "refused", "length"]
    assert [output.text for output in outputs] == ["abab", "", "", "cdcd"]
    empty, large = outputs[1].error, outputs[2].error
    assert empty is not None
    assert large is not None
    assert (empty.kind, empty.field, empty.message) == ("refused", "prompt", "the prompt has no tokens")
    assert (large.value, large.limit) == (20, 19)


def test_another_word_for_errors_is_refused() -> None:
    with pytest.raises(ConfigError, match="errors"):
        make_llm().generate("a", FOUR, errors="ignore")  # type: ignore[arg-type]


def test_an_empty_prompt_is_one_token_where_texts_begin_with_one() -> None:
    tokenizer = ByteTokenizer(bos=True)

    (output,) = make_llm(says("hi"), tokenizer=tokenizer).generate("", FOUR)

    assert (output.prompt_token_ids, output.text, output.finish_reason) == ((BOS,), "hi", "stop")


def test_whitespace_is_a_prompt() -> None:
    assert make_llm().generate(" ", FOUR)[0].text == "    "


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(PromptRefused, match="logit_bias names token 300"):
        make_llm().generate("a", SamplingParams(logit_bias={300: 1.0}))


# --- how outputs end ---------------------------------------------------------------------------------------


def test_end_of_text_ends_the_output_and_has_no_text() -> None:
    (output,) = make_llm(says("hello")).generate("p", SamplingParams(max_tokens=None))

    completion = output.outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("hello", "stop", None)
    assert completion.token_ids == (*b"hello", EOS)


def test_a_stop_token_is_named_and_has_no_text_unless_wanted() -> None:
    llm = make_llm(says("hello"))

    (without,) = llm.generate("p", SamplingParams(stop_token_ids=(ord("l"),)))
    (with_it,) = llm.generate("p", SamplingParams(stop_token_ids=(ord("l"),), include_stop_str_in_output=True))

    assert (without.text, without.outputs[0].stop_reason, without.finish_reason) == ("he", ord("l"), "stop")
    assert with_it.text == "hel"
    assert without.outputs[0].token_ids == with_it.outputs[0].token_ids == tuple(b"hel")


def test_a_stop_string_ends_the_request_and_is_named() -> None:
    llm = make_llm(says("one two three four five six"))

    (output,) = llm.generate("p", SamplingParams(max_tokens=None, stop=("xyz", " three"), logprobs=0))

    completion = output.outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("one two", "stop", " three")
    assert completion.token_ids == tuple(b"one two")
    assert completion.logprobs == tuple(map(measured, b"one two"))
    assert output.metrics is not None
    assert output.metrics.num_output_tokens == 7
    assert llm.engine.metrics.counters.sampled_tokens == 13


def test_a_stop_string_found_with_the_last_token_is_a_stop() -> None:
    llm = make_llm(says("abcd"))

    (output,) = llm.generate("p", SamplingParams(max_tokens=3, stop=("bc", "abcd")))

    assert (output.text, output.finish_reason, output.outputs[0].stop_reason) == ("a", "stop", "bc")
    assert llm.engine.metrics.counters.requests_finished["stop"] == 1
    assert llm.engine.metrics.counters.requests_finished["length"] == 0


def test_a_character_cut_by_max_tokens_is_one_replacement_in_the_end() -> None:
    llm = make_llm(says("a€"))

    updates = [update for _, update in llm.stream("p", SamplingParams(max_tokens=3))]

    assert [update.text for update in updates] == ["a", "\ufffd"]
    assert [update.token_ids for update in updates] == [(ord("a"),), tuple("€".encode()[:2])]


def test_a_request_that_outgrows_the_memory_says_so() -> None:
    (output,) = make_llm(num_blocks=3).generate("x" * 11, SamplingParams(max_tokens=9))

    assert (output.text, output.finish_reason) == ("xx", "kv_capacity")
    assert output.error is not None
    assert output.error.kind == "kv_capacity"


def test_prompt_logprobs_are_put_together_from_chunks() -> None:
    llm = make_llm(max_num_batched_tokens=4, max_num_seqs=1)

    (output,) = llm.generate("abcdefghij", SamplingParams(max_tokens=1, prompt_logprobs=0))

    assert output.prompt_logprobs == (None, *map(measured, b"bcdefghij"))
    assert llm.generate("abc", FOUR)[0].prompt_logprobs is None


# --- errors that stay where they happen --------------------------------------------------------------------


def test_a_failed_step_ends_its_requests_and_the_next_call_works() -> None:
    def fail(plan: StepPlan) -> None:
        if plan.step == 2:
            raise ValueError("no")

    llm = make_llm(before=fail, max_num_seqs=2)

    outputs = llm.generate(["ab", "cd", "ef"], FOUR)

    assert [output.finish_reason for output in outputs] == ["error", "error", "length"]
    assert outputs[0].error is not None
    assert outputs[0].error.message == "the step failed: ValueError: no"
    assert outputs[0].text == "a"
    assert llm.generate("gh", FOUR)[0].text == "ghgh"


def test_an_output_that_cannot_be_made_ends_that_request_only() -> None:
    class Broken(ByteTokenizer):
        def id_to_bytes(self, token_id: int) -> bytes:
            if token_id == ord("c"):
                raise KeyError("no bytes for this one")
            return super().id_to_bytes(token_id)

    llm = make_llm(lambda request_id, prompt: list(b"ababab" if prompt == [1] else b"decide"), tokenizer=Broken())

    outputs = llm.generate([[1], [2]], SamplingParams(max_tokens=6))

    assert [output.finish_reason for output in outputs] == ["length", "error"]
    assert [output.text for output in outputs] == ["ababab", "de"]
    assert outputs[1].outputs[0].token_ids == (100, 101)
    assert outputs[1].error is not None
    assert "no bytes for this one" in outputs[1].error.message
    assert llm.engine.metrics.counters.requests_finished["error"] == 1
    assert not llm.engine.has_work


def test_an_interrupted_call_leaves_nothing_behind() -> None:
    presses = [True]

    def press(plan: StepPlan) -> None:
        if plan.step == 3 and presses.pop():
            raise KeyboardInterrupt

    llm = make_llm(during=press)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["ab", "cd"], SamplingParams(max_tokens=9))

    assert [output.text for output in llm.generate(["ef"], FOUR)] == ["efef"]
    assert llm.engine.scheduler.kv.pool.num_free == 100
    assert not llm.engine.has_work


def test_a_stalled_engine_says_what_its_requests_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make_llm()
    scheduler = llm.engine.scheduler
    empty = scheduler.schedule(0.0)
    monkeypatch.setattr(scheduler, "schedule", lambda now: empty)

    with pytest.raises(
        EngineStalled, match=r"no request moved in 16 steps\nstep 1; KV blocks: 100 of 100 free"
    ) as stall:
        llm.generate("a", FOUR)

    assert "llm-1 (waiting): 1 tokens known" in str(stall.value)
    assert "queue_position (need 0, free 0)" in str(stall.value)


# --- streams -----------------------------------------------------------------------------------------------


def parts(updates: list[RequestUpdate]) -> tuple[str, tuple[int, ...], tuple[Any, ...]]:
    """The parts of a stream, joined."""
    return (
        "".join(update.text for update in updates),
        tuple(token for update in updates for token in update.token_ids),
        tuple(record for update in updates for record in update.logprobs or ()),
    )


@pytest.mark.parametrize("stop", [(), ("lo",), ("llx", "o w"), ("zz",)])
def test_a_stream_joined_is_the_output(stop: tuple[str, ...]) -> None:
    llm = make_llm(says("hello wörld €"))
    params = SamplingParams(max_tokens=14, stop=stop, logprobs=0)

    (whole,) = llm.generate("p", params)
    updates = [update for index, update in llm.stream("p", params) if index == 0]

    completion = whole.outputs[0]
    assert parts(updates) == (completion.text, completion.token_ids, completion.logprobs)
    assert [update.output is not None for update in updates] == [False] * (len(updates) - 1) + [True]
    assert updates[-1].output is not None
    assert updates[-1].output.outputs == whole.outputs


def test_a_stream_that_is_left_aborts_its_requests() -> None:
    llm = make_llm()
    stream = llm.stream(["ab", "cd"], SamplingParams(max_tokens=9))
    next(stream)
    stream.close()  # type: ignore[attr-defined]

    assert llm.engine.metrics.counters.requests_finished["abort"] == 2
    assert llm.engine.scheduler.kv.pool.num_free == 100
    assert llm.generate("ef", FOUR)[0].text == "efef"


def test_a_stream_refuses_before_it_is_read_and_starts_when_it_is() -> None:
    llm = make_llm()

    with pytest.raises(RequestRefused):
        llm.stream(["ab", ""])
    llm.stream(["ab"])

    assert not llm.engine.has_work


def test_refused_prompts_come_first_in_a_stream() -> None:
    updates = list(make_llm().stream(["ab", ""], FOUR, errors="return"))

    assert (updates[0][0], updates[0][1].output.finish_reason) == (1, "refused")  # type: ignore[union-attr]
    assert parts([update for index, update in updates if index == 0])[0] == "abab"


# --- chat --------------------------------------------------------------------------------------------------


def test_chat_takes_one_conversation_or_several() -> None:
    llm = make_llm(says("hi"))
    hello = [{"role": "user", "content": "hello"}]

    (one,) = llm.chat(hello, FOUR)
    many = llm.chat([hello, hello], FOUR)

    assert one.prompt == "<user>hello\n<assistant>"
    assert [output.text for output in [one, *many]] == ["hi"] * 3


def test_chat_adds_no_special_tokens_of_its_own() -> None:
    llm = make_llm(says("hi"), tokenizer=ByteTokenizer(bos=True))

    (output,) = llm.chat([{"role": "user", "content": "x"}], FOUR)

    assert BOS not in output.prompt_token_ids


def test_messages_that_the_template_refuses_are_refused() -> None:
    llm = make_llm()
    good, bad = [{"role": "user", "content": "x"}], [{"role": "user"}]

    with pytest.raises(PromptRefused, match="prompt 1: a message has no content"):
        llm.chat([good, bad])
    outputs = llm.chat([good, bad], FOUR, errors="return")

    assert [output.finish_reason for output in outputs] == ["length", "refused"]


def test_a_prompt_whose_text_cannot_be_continued_is_never_added() -> None:
    class Broken(ByteTokenizer):
        def id_to_bytes(self, token_id: int) -> bytes:
            raise KeyError(token_id)

    llm = make_llm(tokenizer=Broken())

    with pytest.raises(KeyError):
        llm.generate("a", FOUR)
    assert not llm.engine.has_work


# --- the rest ----------------------------------------------------------------------------------------------


def test_the_same_work_gives_the_same_tokens_whatever_the_batch() -> None:
    prompts = [[number] * 9 for number in range(6)]
    params = SamplingParams(max_tokens=12, ignore_eos=True)

    def tokens(**options: Any) -> list[tuple[int, ...]]:
        llm = OfflineLLM(make_engine(FakeExecutor(block_size=4, vocab_size=256), isolate_errors=False, **options))
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

    alone = tokens(max_num_seqs=1)
    assert tokens() == alone
    assert tokens(max_num_batched_tokens=5) == alone
    assert tokens(num_blocks=9) == alone
    assert tokens(depth=2) == alone


def test_the_progress_bar_counts_requests_and_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    make_llm().generate(["ab", "cd", "ef"], FOUR, use_progress=True)

    assert "3/3" in capsys.readouterr().err


def test_a_closed_llm_refuses_and_can_be_closed_twice() -> None:
    closed = []
    with make_llm() as llm:
        llm.engine.on_close = lambda: closed.append(1)
        llm.generate("a", FOUR)
    llm.close()

    assert closed == [1]
    with pytest.raises(RuntimeError, match="the engine is closed"):
        llm.generate("a", FOUR)


def test_a_stop_that_is_one_string_is_refused_for_what_it_would_mean() -> None:
    with pytest.raises(ConfigError, match=r"stop='END' is not usable: must be a sequence, .* its characters"):
        SamplingParams(stop="END")  # type: ignore[arg-type]
