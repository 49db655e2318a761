"""Admission: exact limits, nothing in between check and count, and no count that leaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.server.admission import QUEUE_FULL, QUEUE_TOKENS, Admission, Ticket, TurnedAway


def counts(admission: Admission) -> tuple[int, int]:
    return admission.num_requests, admission.num_tokens


def test_without_limits_everybody_comes_in() -> None:
    admission = Admission(None, None)

    for _ in range(1000):
        admission.admit(10).charge([10**6] * 10)

    assert counts(admission) == (10_000, 10**10)


def test_a_call_of_several_is_let_in_whole_or_not_at_all() -> None:
    admission = Admission(3, None)
    tickets = [admission.admit(1), admission.admit(1)]

    with pytest.raises(TurnedAway, match="2 requests are unfinished and 2 more would exceed the limit of 3") as caught:
        admission.admit(2)
    assert (caught.value.reason, counts(admission)) == (QUEUE_FULL, (2, 0))

    tickets[0].release()
    admission.admit(2)
    assert counts(admission) == (3, 0)
    assert admission.turned_away == {QUEUE_FULL: 1, QUEUE_TOKENS: 0}


def test_a_limit_of_no_requests_lets_nobody_in() -> None:
    with pytest.raises(TurnedAway):
        Admission(0, None).admit(1)


def test_prompt_tokens_leave_the_count_at_the_first_token() -> None:
    admission = Admission(None, 50)
    first, second = admission.admit(1), admission.admit(1)
    first.charge([30])

    with pytest.raises(TurnedAway, match="30 prompt tokens are waiting and 30 more would exceed the limit of 50") as no:
        second.charge([30])
    assert (no.value.reason, counts(admission)) == (QUEUE_TOKENS, (2, 30))

    first.first_token(0)
    second.charge([30])
    assert counts(admission) == (2, 30)
    second.release()
    assert counts(admission) == (1, 0)


def test_an_idle_server_takes_a_prompt_of_any_size() -> None:
    admission = Admission(None, 50)
    admission.admit(2).charge([60, 60])

    with pytest.raises(TurnedAway):
        admission.admit(1)
    assert counts(admission) == (2, 120)


def test_the_limit_itself_is_allowed() -> None:
    admission = Admission(2, 50)
    admission.admit(1).charge([20])
    admission.admit(1).charge([30])

    assert counts(admission) == (2, 50)


def test_the_request_limit_is_looked_at_first() -> None:
    admission = Admission(1, 1)
    admission.admit(1).charge([5])

    with pytest.raises(TurnedAway) as caught:
        admission.admit(1)
    assert caught.value.reason == QUEUE_FULL


def test_a_call_that_waits_to_be_tokenised_is_turned_away_as_soon_as_there_is_no_room() -> None:
    admission = Admission(None, 50)
    early, late, small = admission.admit(1), admission.admit(3, fewest_tokens=9), admission.admit(1)
    early.charge([48])

    with pytest.raises(TurnedAway, match="48 prompt tokens are waiting and 9 more would exceed the limit of 50"):
        late.check()
    with pytest.raises(TurnedAway):
        admission.admit(1, fewest_tokens=3)
    small.check()
    early.first_token(0)
    late.check()


def test_requests_of_a_call_leave_one_by_one() -> None:
    admission = Admission(4, None)
    ticket = admission.admit(4)
    ticket.charge([1, 2, 3, 4])

    ticket.first_token(2)
    ticket.end(3)
    assert (counts(admission), ticket.num_unfinished) == ((3, 3), 3)
    admission.admit(1)


ENDS: dict[str, Callable[[Ticket, int], None]] = {
    "first token": lambda ticket, index: ticket.first_token(index),
    "end": lambda ticket, index: ticket.end(index),
    "release": lambda ticket, index: ticket.release(),
    "first token again": lambda ticket, index: (ticket.first_token(index), ticket.first_token(index))[0],
}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_counts_are_those_of_the_tickets_and_return_to_nothing(data: st.DataObject) -> None:
    limits = st.none() | st.integers(0, 12)
    admission = Admission(data.draw(limits), data.draw(limits))
    live: list[tuple[Ticket, list[int]]] = []

    for _ in range(data.draw(st.integers(0, 30))):
        if data.draw(st.booleans()):
            sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
            before = counts(admission)
            try:
                ticket = admission.admit(len(sizes))
            except TurnedAway:
                assert counts(admission) == before
                continue
            live.append((ticket, sizes))
            try:
                ticket.charge(sizes)
            except TurnedAway:
                assert admission.num_tokens == before[1]
                ticket.release()
                assert counts(admission) == before
        elif live:
            ticket, sizes = data.draw(st.sampled_from(live))
            ENDS[data.draw(st.sampled_from(sorted(ENDS)))](ticket, data.draw(st.integers(0, len(sizes) - 1)))
        assert admission.num_requests == sum(ticket.num_unfinished for ticket, _ in live)
        assert admission.max_requests is None or admission.num_requests <= admission.max_requests
        assert admission.num_tokens >= 0

    for ticket, _ in live:
        ticket.release()
    assert counts(admission) == (0, 0)
