"""Stop strings are found wherever the pieces are cut, and nothing of them gets out."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from headway.engine.stop_strings import StopStringFinder


def stream(pieces: list[str], stops: list[str], *, floor: int = 0) -> tuple[list[str], str | None]:
    """What each piece let go, and the stop string that was found."""
    finder = StopStringFinder(stops)
    finder.floor = floor
    out = []
    for piece in [*pieces, None]:
        text, match = finder.feed(piece or "", last=piece is None)
        out.append(text)
        if match is not None:
            return out, match.stop
    return out, None


def reference(text: str, stops: list[str], floor: int = 0) -> tuple[str, str | None]:
    """The rule, read off the whole text: the first match to begin; of those, the first to end."""
    matches = [
        (start, len(stop), stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > floor
    ]
    if not matches:
        return text, None
    start, _, stop = min(matches)
    return text[:start], stop


def test_a_stop_over_four_pieces_does_not_leak() -> None:
    assert stream(["abc", "DEF", "G", "HI", "JK"], ["DEFGHIJ"]) == (["abc", "", "", "", ""], "DEFGHIJ")


def test_a_near_miss_comes_later_and_whole() -> None:
    assert stream(["abc", "DEF", "X"], ["DEFG"]) == (["abc", "", "DEFX", ""], None)


def test_a_stop_within_a_piece_cuts_it() -> None:
    assert stream(["abcd"], ["bc"]) == (["a"], "bc")


def test_text_held_back_comes_in_the_end() -> None:
    assert stream(["ab"], ["bc"]) == (["a", "b"], None)


def test_the_match_that_begins_first_wins_though_it_ends_later() -> None:
    assert stream(["a", "b", "c", "d"], ["bc", "abcd"]) == (["", "", "", ""], "abcd")


def test_a_match_waits_for_an_earlier_one_only_while_that_is_possible() -> None:
    assert stream(["a", "b", "c", "x"], ["bc", "abcd"]) == (["", "", "", "a"], "bc")


def test_a_waiting_match_counts_when_the_text_ends() -> None:
    assert stream(["abc"], ["bc", "abcd"]) == (["", "a"], "bc")


def test_of_two_at_one_place_the_shorter_wins() -> None:
    assert stream(["xabc"], ["abc", "ab"]) == (["x"], "ab")


def test_matches_before_the_floor_do_not_count() -> None:
    assert stream(["ab", "ab", "ab"], ["ab"], floor=4) == (["ab", "ab", ""], "ab")


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert stream(["a", "b"], []) == (["a", "b", ""], None)


@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    floor=st.integers(0, 10),
)
@example(pieces=["a", "a", "b"], stops=["aab", "ab"], floor=0)
@example(pieces=["aaba", "b"], stops=["b", "abab"], floor=0)
def test_any_pieces_give_the_cut_of_the_whole_text(pieces: list[str], stops: list[str], floor: int) -> None:
    out, stop = stream(pieces, stops, floor=floor)

    assert ("".join(out), stop) == reference("".join(pieces), stops, floor)
