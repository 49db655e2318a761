"""``/v1/completions`` over HTTP: every field does what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headway.config import SamplingParams
from headway.core.logprobs import TokenLogprobs
from headway.core.plan import StepPlan, StepResult
from headway.core.request import Request
from tests.engine.builders import BOS, EOS, ByteTokenizer, ScriptedExecutor, echo
from tests.server.running import Gate, Running, serving


class Watched(ScriptedExecutor):
    """Says the prompt again; the n-th token of a request has the log probability -n, and rivals. Keeps what it got."""

    def __init__(self) -> None:
        super().__init__(echo)
        self.sampling: dict[str, SamplingParams] = {}
        self.urgency: dict[str, str] = {}
        self._names: dict[int, str] = {}
        self._num_sampled: dict[int, int] = {}
        self.quality: dict[str, float] = {}
        """Request id -> log probability of all its tokens, if not counted."""

    def submit(self, plan: StepPlan) -> None:
        for row in plan.admitted:
            self.sampling[row.request_id] = row.sampling
            self._names[row.slot], self._num_sampled[row.slot] = row.request_id, 0
        super().submit(plan)

    def collect(self) -> StepResult:
        plan = self._plans[0]
        result = super().collect()
        for row, slot in enumerate(plan.slots.tolist()):
            if plan.samples[row]:
                self._num_sampled[slot] += 1
                name, token = self._names[slot], int(result.tokens[row, 0])
                logprob = self.quality.get(name, -float(self._num_sampled[slot]))
                top = tuple((ord("x") + place, -0.5 - place) for place in range(self.sampling[name].logprobs or 0))
                result.logprobs[row] = [TokenLogprobs(token, logprob, 3, top)]  # type: ignore[index]
        return result


@pytest.fixture(scope="module")
def executor() -> Watched:
    return Watched()


@pytest.fixture(scope="module")
def server(executor: Watched) -> Iterator[Running]:
    with serving(executor) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left_behind(server: Running) -> Iterator[None]:
    yield
    server.rest()


def texts(body: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in body["choices"]]


def test_a_completion_has_openais_shape(server: Running) -> None:
    body = server.complete("abc", max_tokens=4).json()

    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "object": "text_completion",
        "model": "bytes",
        "choices": [{"index": 0, "text": "abca", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize("max_tokens", [{}, {"max_tokens": None}])
def test_without_max_tokens_a_completion_has_16(server: Running, max_tokens: dict[str, Any]) -> None:
    assert server.complete("ab", **max_tokens).json()["usage"]["completion_tokens"] == 16


def test_more_tokens_than_fit_end_by_length(server: Running) -> None:
    body = server.complete("abc", max_tokens=10**15, ignore_eos=True).json()

    assert body["usage"]["total_tokens"] == 128
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        (["ab", "xyz"], ["ab", "xy"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [120, 121, 122]], ["ab", "xy"]),
    ],
)
def test_prompts_come_in_four_forms(server: Running, prompt: Any, expected: list[str]) -> None:
    body = server.complete(prompt, max_tokens=2).json()

    assert texts(body) == expected
    assert [choice["index"] for choice in body["choices"]] == list(range(len(expected)))


def test_n_choices_per_prompt_come_prompt_by_prompt(server: Running) -> None:
    body = server.complete(["ab", "xy"], n=3, max_tokens=2).json()

    assert texts(body) == ["ab"] * 3 + ["xy"] * 3
    assert body["usage"]["prompt_tokens"] == 4
    assert body["usage"]["completion_tokens"] == 12


def test_choices_of_one_seed_draw_from_seeds_of_their_own(server: Running, executor: Watched) -> None:
    headers = {"X-Request-Id": "seeded"}
    server.post("/v1/completions", {"prompt": ["ab", "cd"], "n": 2, "seed": 7, "max_tokens": 1}, headers=headers)

    assert [executor.sampling[f"seeded#{place}"].seed for place in range(4)] == [7, 8, 7, 8]


def test_best_of_keeps_the_likeliest(server: Running, executor: Watched) -> None:
    executor.quality = {f"best#{place}": logprob for place, logprob in enumerate([-3.0, -1.0, -2.0, -1.0])}
    call = {"prompt": "ab", "n": 2, "best_of": 4, "max_tokens": 3}
    shown = server.post("/v1/completions", {**call, "logprobs": 0}, headers={"X-Request-Id": "best"}).json()
    hidden = server.post("/v1/completions", call, headers={"X-Request-Id": "best"}).json()

    assert [choice["logprobs"]["token_logprobs"] for choice in shown["choices"]] == [[-1.0] * 3] * 2
    assert [choice["logprobs"] for choice in hidden["choices"]] == [None, None]
    assert hidden["usage"] == shown["usage"]
    assert shown["usage"]["completion_tokens"] == 12


def test_log_probabilities_are_parallel_lists(server: Running) -> None:
    choice = server.complete("aé", max_tokens=4, logprobs=2).json()["choices"][0]

    assert choice["text"] == "aéa"
    assert choice["logprobs"] == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "a"],
        "token_logprobs": [-1.0, -2.0, -3.0, -4.0],
        "top_logprobs": [
            {"x": -0.5, "y": -1.5, token: -float(number)}
            for number, token in enumerate(["a", "bytes:\\xc3", "bytes:\\xa9", "a"], 1)
        ],
        "text_offset": [0, 1, 1, 2],
    }


def test_echo_repeats_the_prompt(server: Running) -> None:
    assert texts(server.complete(["ab", "xy"], echo=True, n=2, max_tokens=1).json()) == ["aba", "aba", "xyx", "xyx"]
    assert texts(server.complete([97, 98], echo=True, max_tokens=1).json()) == ["aba"]


def test_echo_with_log_probabilities_covers_the_prompt(server: Running) -> None:
    choice = server.complete("aé", echo=True, logprobs=0, max_tokens=2).json()["choices"][0]

    assert choice["text"] == "aéa\ufffd"
    assert choice["logprobs"]["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "a", "bytes:\\xc3"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0, -1.0, -2.0]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 3]
    assert choice["logprobs"]["top_logprobs"][0] is None


def test_no_tokens_with_echo_scores_the_prompt_alone(server: Running) -> None:
    body = server.complete(["abc", "d"], echo=True, max_tokens=0, logprobs=1, return_token_ids=True).json()

    assert texts(body) == ["abc", "d"]
    assert [choice["logprobs"]["token_logprobs"] for choice in body["choices"]] == [[None, -1.0, -1.0], [None]]
    assert [choice["token_ids"] for choice in body["choices"]] == [[97, 98, 99], [100]]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    assert body["usage"]["completion_tokens"] == 0
    streamed = server.stream("/v1/completions", {"prompt": "abc", "echo": True, "max_tokens": 0})
    assert [event["choices"][0]["text"] for event in streamed] == ["abc", ""]


@pytest.mark.parametrize("form", ["c", ["zz", "c"]])
def test_stop_strings_end_the_text_before_them(server: Running, form: Any) -> None:
    [choice] = server.complete("abc", stop=form, max_tokens=9).json()["choices"]

    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", "c")


def test_a_stop_string_can_be_kept(server: Running) -> None:
    body = server.complete("abc", stop="bc", include_stop_str_in_output=True, max_tokens=9).json()

    assert texts(body) == ["abc"]
    assert body["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(("stop", "text"), [("</s>", "ab\n"), ("\n</s>", "ab"), ("</s>c", "ab\n")])
@pytest.mark.parametrize("skip", [True, False])
def test_the_text_of_a_special_token_is_a_stop_string(server: Running, stop: str, text: str, skip: bool) -> None:
    prompt = [*b"ab\n", EOS, *b"c"]
    fields = {"stop": stop, "ignore_eos": True, "skip_special_tokens": skip, "max_tokens": 5}

    [choice] = server.complete(prompt, **fields).json()["choices"]
    events = server.stream("/v1/completions", {"prompt": prompt, **fields})

    assert (choice["text"], choice["stop_reason"]) == (text, stop)
    assert "".join(event["choices"][0]["text"] for event in events) == text
    assert events[-1]["choices"][0]["stop_reason"] == stop


def test_a_stop_string_may_end_in_the_token_that_ends_the_text(server: Running) -> None:
    [choice] = server.complete([*b"ab\n", EOS], stop="\n</s>", max_tokens=9).json()["choices"]

    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("ab", "stop", "\n</s>")


def test_stop_token_ids_end_the_text(server: Running) -> None:
    [choice] = server.complete("abc", stop_token_ids=[98], max_tokens=9).json()["choices"]

    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", 98)


def test_every_sampling_field_reaches_the_sampler(server: Running, executor: Watched) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.25,
        "min_p": 0.125,
        "top_k": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "seed": 11,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    body = {"prompt": "ab", "max_tokens": 3, "stop": "q", "stop_token_ids": [7], "logit_bias": {"5": -1, "6": 2.5}}
    answer = server.post("/v1/completions", {**body, **fields}, headers={"X-Request-Id": "all"})

    assert answer.status_code == 200
    assert executor.sampling["all"] == SamplingParams(
        max_tokens=3, stop=("q",), stop_token_ids=(7,), logit_bias={5: -1.0, 6: 2.5}, **fields
    )


def test_null_fields_are_the_defaults(server: Running, executor: Watched) -> None:
    names = (
        "n best_of echo logprobs suffix model stop seed stream stream_options max_tokens temperature top_p top_k min_p"
        " presence_penalty frequency_penalty repetition_penalty logit_bias min_tokens stop_token_ids ignore_eos"
        " include_stop_str_in_output skip_special_tokens return_token_ids priority cache_salt timeout user metadata"
        " store service_tier deadline_s slo"
    )
    body = {"prompt": "ab", **dict.fromkeys(names.split())}
    answer = server.post("/v1/completions", body, headers={"X-Request-Id": "nulls"})

    assert answer.status_code == 200
    assert executor.sampling["nulls"] == SamplingParams()


def test_wishes_for_the_scheduler_reach_it(server: Running) -> None:
    wishes = {"priority": -3, "cache_salt": "s", "user": "somebody", "deadline_s": 2.5, "slo": "interactive"}
    added: list[Request] = []
    add = server.engine.loop.add
    server.engine.loop.add = lambda request, text=None: (added.append(request), add(request, text))[1]  # type: ignore
    answer = server.complete("ab", max_tokens=1, **wishes)
    server.engine.loop.add = add  # type: ignore[method-assign]

    assert answer.status_code == 200
    [request] = added
    assert (request.priority, request.cache_salt, request.tenant) == (-3, "s", "somebody")
    assert (request.deadline_s, request.slo) == (2.5, "interactive")
    assert server.complete("ab", slo="whenever").json()["error"]["param"] == "slo"
    assert server.complete("ab", deadline_s=-1).json()["error"]["param"] == "deadline_s"


def test_top_k_of_minus_one_means_all(server: Running, executor: Watched) -> None:
    server.post("/v1/completions", {"prompt": "ab", "top_k": -1}, headers={"X-Request-Id": "top-k"})

    assert executor.sampling["top-k"].top_k == 0


def test_cached_tokens_are_in_the_usage(server: Running) -> None:
    prompt = "the same beginning of sixteen and more"
    server.complete(prompt, max_tokens=1)

    usage = server.complete(prompt, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": (len(prompt) - 1) // 4 * 4}


def test_token_ids_come_on_request(server: Running) -> None:
    body = {"prompt": "é", "max_tokens": 2, "return_token_ids": True}

    assert server.post("/v1/completions", body).json()["choices"][0]["token_ids"] == [0xC3, 0xA9]
    chunks = [event["choices"][0] for event in server.stream("/v1/completions", body)]
    assert [(chunk["text"], chunk.get("token_ids")) for chunk in chunks] == [("é", [0xC3, 0xA9]), ("", None)]


def test_a_model_with_a_beginning_of_text_token_takes_an_empty_prompt() -> None:
    with serving(tokenizer=ByteTokenizer(bos=True)) as server:
        answers = [server.complete(prompt, max_tokens=2) for prompt in ("", [""], " ")]

        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert [answer.json()["usage"]["prompt_tokens"] for answer in answers] == [1, 1, 2]
        assert server.complete([[BOS], [97]], max_tokens=1).status_code == 200
        server.rest()


def test_what_the_kv_memory_cannot_hold_ends_with_a_stated_reason() -> None:
    with serving(num_blocks=10, max_num_batched_tokens=64) as server:
        refused = server.complete("x" * 60)
        assert refused.status_code == 400
        assert "the KV memory holds prompts of at most 39 tokens" in refused.json()["error"]["message"]

        beside = server.connect("/v1/completions", {"prompt": "b", "max_tokens": 2})
        [choice] = server.complete("a" * 36, max_tokens=20).json()["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "kv_capacity")
        assert 0 < len(choice["text"]) <= 5
        events = server.stream("/v1/completions", {"prompt": "a" * 36, "max_tokens": 20})
        assert events[-1]["choices"][0]["stop_reason"] == "kv_capacity"
        assert b'"text":"bb"' in beside.recv(4096)
        beside.close()
        server.rest()


def test_urgent_requests_go_first_under_the_priority_policy() -> None:
    order: list[str] = []
    gate = Gate()
    executor = ScriptedExecutor(
        echo, before=lambda plan: order.extend(row.request_id for row in plan.admitted), during=gate
    )
    with serving(executor, scheduling_policy="priority", max_num_seqs=1) as server:
        body = {"prompt": "x", "max_tokens": 2}
        connections = [server.connect("/v1/completions", {**body, "priority": -9}, headers="X-Request-Id: first\r\n")]
        gate.wait()
        for priority in (3, 2, 1):
            headers = f"X-Request-Id: p{priority}\r\n"
            connections.append(server.connect("/v1/completions", {**body, "priority": priority}, headers=headers))
        server.until(lambda: server.service.engine.num_open == 4)
        gate.open()
        for connection in connections:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.close()
        server.rest()

    assert order == ["first", "p1", "p2", "p3"]


def test_bad_words_reach_the_sampler_as_tokens(server: Running, executor: Watched) -> None:
    server.complete("abc", bad_words=["x", " yz"], n=2, max_tokens=2)

    first, second = list(executor.sampling.values())[-2:]
    assert first.bad_token_ids == second.bad_token_ids == ((ord("x"),), tuple(b"yz"))


@pytest.mark.parametrize(
    ("words", "code"), [([""], "invalid_value"), (["a"] * 101, "limit_exceeded"), (["a" * 257], "limit_exceeded")]
)
def test_bad_words_have_bounds(server: Running, words: list[str], code: str) -> None:
    response = server.complete("abc", bad_words=words)

    assert response.status_code == 400
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == ("bad_words", code)
