"""Outputs are kept to their forms: whatever else is in the batch, in any chunks, with steps in flight, resumed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headway.config import Structured
from headway.core.plan import Int32
from headway.executor.masks import Matcher
from tests.executor.builders import EOS, VOCAB, Driver, make_executor

PROMPT = [7, 3, 9, 9, 21, 4]
LENGTH = 6


class CountingMatcher:
    """Allows token ``t`` at place ``n`` if ``t % base == n % base``, for ``LENGTH`` tokens; then the end."""

    def __init__(self, base: int, trouble: str) -> None:
        self.base = base
        self.trouble = trouble
        self.consumed: list[int] = []
        self.error = ""

    def consume(self, token_ids: list[int]) -> None:
        self.consumed += token_ids
        if self.trouble == "raises when it consumes" and len(self.consumed) == 3:
            raise OSError("lost")

    @property
    def allowed(self) -> list[int]:
        place = len(self.consumed)
        if self.trouble == "dead end" and place == 3:
            return []
        return (
            [EOS] if place == LENGTH else [token for token in range(1, VOCAB) if token % self.base == place % self.base]
        )


class CountingGrammars:
    """Forms are "base trouble"; matchers are kept to be looked at."""

    def __init__(self) -> None:
        self.matchers: list[CountingMatcher] = []

    def start(self, form: Structured) -> CountingMatcher:
        base, _, trouble = form.text.partition(" ")
        self.matchers.append(CountingMatcher(int(base), trouble))
        return self.matchers[-1]

    def fill(self, matchers: Sequence[Matcher], bits: Int32) -> None:
        bits[: len(matchers)] = 0
        for row, matcher in enumerate(matchers):
            assert isinstance(matcher, CountingMatcher)
            if matcher.trouble == "raises" and len(matcher.consumed) == 3:
                raise OSError("lost")
            if matcher.trouble == "gives up" and len(matcher.consumed) == 3:
                matcher.error = "too much work"
            for token in matcher.allowed:
                bits[row, token // 32] |= np.array(1 << token % 32).astype(np.uint32).view(np.int32)


def form(text: str = "5") -> Structured:
    """A form for ``CountingGrammars``."""
    return Structured("grammar", text)


def make_driver(grammars: CountingGrammars | None = None) -> Driver:
    return Driver(make_executor(grammars=grammars or CountingGrammars()))


def run_alone(text: str = "5", **sampling: object) -> list[int]:
    driver = make_driver()
    driver.admit(0, PROMPT, structured=form(text), **sampling)
    driver.step({0: len(PROMPT)})
    return driver.decode(0, LENGTH)


def fits(tokens: list[int], base: int = 5) -> bool:
    return tokens[-1] == EOS and [token % base for token in tokens[:-1]] == [n % base for n in range(LENGTH)]


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 4}, {"temperature": 2.0, "top_p": 0.9, "seed": 1}]
)
def test_only_tokens_of_the_form_are_chosen(sampling: dict[str, float]) -> None:
    assert fits(run_alone(**sampling))


def test_tokens_are_the_same_in_any_batch_and_any_chunks() -> None:
    expected, plain = run_alone(), Driver()
    plain.admit(3, PROMPT)
    plain.step({3: len(PROMPT)})
    driver = make_driver()
    driver.admit(3, PROMPT)
    driver.step({3: 4})
    driver.admit(1, PROMPT, structured=form())
    driver.admit(2, PROMPT, structured=form("3"))
    driver.step({1: 2, 2: 6, 3: 2})
    driver.step({2: 1, 1: 4})

    tokens = driver.decode(1, LENGTH, others=[3])

    assert tokens == expected
    assert fits([*driver.decode(2, LENGTH - 1)], base=3)
    assert driver.outputs[3] == plain.decode(3, LENGTH)[: len(driver.outputs[3])]


def test_matchers_learn_delivered_tokens_only_and_each_once() -> None:
    grammars = CountingGrammars()
    driver = make_driver(grammars)
    driver.admit(0, PROMPT, structured=form())
    driver.step({0: 2})
    driver.step({0: 3})
    assert grammars.matchers[0].consumed == []
    driver.step({0: 1})
    tokens = driver.decode(0, 4)

    assert grammars.matchers[0].consumed == tokens[:-1]


def test_a_step_may_be_in_flight() -> None:
    driver = make_driver()
    driver.admit(0, PROMPT, structured=form())
    driver.submit({0: len(PROMPT)})
    for _ in range(LENGTH):
        driver.submit({0: 1})
        driver.collect()
    driver.collect()

    assert driver.outputs[0] == run_alone()


def test_a_preempted_request_goes_on_where_it_was() -> None:
    expected = run_alone()
    driver = make_driver()
    driver.admit(0, PROMPT, structured=form())
    driver.step({0: len(PROMPT)})
    tokens = driver.decode(0, 2)
    driver.release(0)
    driver.admit(4, PROMPT, structured=form("3"))
    driver.step({4: 6})
    driver.admit(0, PROMPT + tokens, num_prompt=len(PROMPT), structured=form())
    driver.step({0: 4, 4: 1})
    driver.step({0: len(PROMPT) + len(tokens) - 4, 4: 1})

    assert driver.decode(0, LENGTH - len(tokens)) == expected


def test_a_slot_forgets_the_form_of_its_last_request() -> None:
    plain = Driver()
    plain.admit(0, PROMPT)
    plain.step({0: len(PROMPT)})
    driver = make_driver()
    driver.admit(0, PROMPT, structured=form())
    driver.step({0: len(PROMPT)})
    driver.release(0)
    driver.admit(0, PROMPT)
    driver.step({0: len(PROMPT)})

    assert driver.decode(0, 3) == plain.decode(0, 3)


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("raises", "OSError: lost"),
        ("raises when it consumes", "OSError: lost"),
        ("gives up", "too much work"),
        ("dead end", "no token is left that its form and its other parameters allow"),
    ],
)
def test_a_form_that_fails_ends_its_request_alone(trouble: str, message: str) -> None:
    driver = make_driver()
    for slot, text in enumerate(("5", f"5 {trouble}", "5")):
        driver.admit(slot, PROMPT, structured=form(text))
    driver.admit(3, PROMPT)
    driver.step(dict.fromkeys(range(4), len(PROMPT)))
    driver.decode(0, 2, others=[1, 2, 3])

    result = driver.step(dict.fromkeys(range(4), 1))

    assert result.failed == {1: f"structured output failed: {message}"}
    assert result.counts.tolist() == [1, 0, 1, 1]
    assert [driver.decode(slot, LENGTH - 3) for slot in (0, 2)] == [run_alone()] * 2


def test_other_parameters_apply_within_the_form() -> None:
    greedy = run_alone()
    biased = run_alone(logit_bias={6: 100.0, 7: 100.0})

    assert biased[1:3] == [6, 7]
    assert greedy[1:3] != [6, 7]
    assert fits(biased)


def test_log_probabilities_are_those_of_the_model() -> None:
    driver = make_driver()
    driver.admit(0, PROMPT, structured=form("7"), logprobs=2)
    driver.admit(1, PROMPT, logprobs=2)

    result = driver.step({0: len(PROMPT), 1: len(PROMPT)})

    [kept], [free] = result.logprobs[0], result.logprobs[1]
    assert kept.top == free.top
    assert kept.token == driver.outputs[0][0] != free.token


def test_an_executor_without_grammars_fails_the_request_alone() -> None:
    driver = Driver()
    driver.admit(0, PROMPT, structured=form())
    driver.admit(1, PROMPT)

    result = driver.step({0: len(PROMPT), 1: len(PROMPT)})

    assert list(result.failed) == [0]
    assert "not supported" in result.failed[0]
