"""Requests are known by handle: whatever happens to names, an abort ends the request that was meant or nobody."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core import Request, RequestRefused
from tests.core.builders import PrefixModel, make_request, make_scheduler

NAMES = ("a", "b", "c")
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(NAMES)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("step"), st.just(0)),
    ),
    max_size=60,
)


def test_an_abort_that_comes_late_does_not_hit_the_next_request_of_that_name() -> None:
    scheduler = make_scheduler()
    first, second = make_request("a", 4), make_request("a", 4)
    scheduler.add(first, 0.0)
    assert scheduler.abort(first.handle, 0.0)
    scheduler.add(second, 0.0)

    assert not scheduler.abort(first.handle, 0.0)

    assert scheduler.has_unfinished
    assert scheduler.abort(second.handle, 0.0)
    assert not scheduler.has_unfinished


@given(MOVES)
@settings(max_examples=150, deadline=None)
def test_every_request_ends_by_its_own_cause_however_names_are_used_again(moves: list[tuple[str, int | str]]) -> None:
    """The books are kept here by request object; names are reused as soon as they are free, old handles at any time."""
    scheduler, model = make_scheduler(max_num_seqs=2), PrefixModel()
    added: list[Request] = []
    aborted: set[int] = set()
    for kind, what in [*moves, *[("step", 0)] * 60]:
        live = [request for request in added if request.finish_reason is None]
        if kind == "add":
            request = make_request(str(what), 3 + len(added) % 5, max_tokens=3)
            if any(other.request_id == what for other in live):
                with pytest.raises(RequestRefused, match="is unfinished"):
                    scheduler.add(request, 0.0)
            else:
                scheduler.add(request, 0.0)
                added.append(request)
        elif kind == "abort" and isinstance(what, int) and added:
            meant = added[what % len(added)]
            assert scheduler.abort(meant.handle, 0.0) == (meant in live)
            if meant in live:
                aborted.add(meant.handle)
        elif kind == "step":
            plan = scheduler.schedule(0.0)
            if plan.num_rows:
                model.submit(plan)
                scheduler.update(plan, model.collect(), 0.0)
        scheduler.check_invariants()
    assert not scheduler.has_unfinished
    assert len({request.handle for request in added}) == len(added)
    reasons = {request.handle: request.finish_reason.value for request in added if request.finish_reason is not None}
    assert reasons == {request.handle: "abort" if request.handle in aborted else "length" for request in added}
