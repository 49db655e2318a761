"""Stop strings are found wherever the pieces are cut, and nothing of them gets out."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from headway.engine.stop_strings import Run, StopStringFinder, shown_text


def stream(pieces: list[str], stops: list[str], *, floor: int = 0) -> tuple[list[str], str | None]:
    """What each piece let go, and the stop string that was found."""
    finder = StopStringFinder(stops)
    finder.floor = floor
    out = []
    for piece in [*pieces, None]:
        runs, match = finder.feed([Run(piece)] if piece else [], last=piece is None)
        out.append(shown_text(runs))
        if match is not None:
            return out, match.stop
    return out, None


def hidden(text: str) -> Run:
    """A run that clients do not get."""
    return Run(text, hidden=True)


def stream_runs(runs: list[Run], stops: list[str], *, keep: bool = False) -> tuple[list[Run], str | None]:
    """All that was let go, and the stop string that was found."""
    finder = StopStringFinder(stops, keep=keep)
    out: list[Run] = []
    for run in [*runs, None]:
        fresh, match = finder.feed([run] if run is not None else [], last=run is None)
        out += fresh
        if match is not None:
            return out, match.stop
    return out, None


def reference_runs(runs: list[Run], stops: list[str]) -> tuple[str, str | None]:
    """The rule for text with hidden runs: the shown text before the cut, by trying every stretch of the text."""
    characters = [(run, place, char) for run in runs for place, char in enumerate(run.text)]

    def halves(place: int) -> bool:
        """Whether a cut here halves a hidden run."""
        return 0 < place < len(characters) and characters[place][0].hidden and characters[place][1] > 0

    def shows(place: int) -> bool:
        return not characters[place][0].hidden

    found = []
    for start in range(len(characters)):
        for end in range(start + 1, len(characters) + 1):
            part = characters[start:end]
            whole = "".join(char for _, _, char in part)
            shown = "".join(char for run, _, char in part if not run.hidden)
            for stop in stops:
                as_shown = stop == shown and shows(start) and shows(end - 1)
                if (stop == whole or as_shown) and not halves(start) and not halves(end):
                    found.append((start, end, stop))
    cut, _, stop = min(found) if found else (len(characters), 0, None)
    return "".join(char for run, _, char in characters[:cut] if not run.hidden), stop


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


def test_a_stop_that_is_a_hidden_run_is_found_and_not_let_go() -> None:
    assert stream_runs([Run("ab"), hidden("<end>"), Run("c")], ["<end>"]) == ([Run("ab")], "<end>")


def test_a_stop_may_end_in_a_hidden_run_or_begin_with_one() -> None:
    assert stream_runs([Run("a\n"), hidden("<end>")], ["\n<end>"]) == ([Run("a")], "\n<end>")
    assert stream_runs([Run("a"), hidden("<end>"), Run("us"), Run("er")], ["<end>user"]) == ([Run("a")], "<end>user")


def test_hidden_runs_that_are_no_stop_are_let_go_in_their_place() -> None:
    runs = [Run("a"), hidden("<x>"), hidden("<y>"), Run("b")]

    assert stream_runs(runs, ["<end>"]) == (runs, None)


def test_a_part_of_a_hidden_run_is_no_stop() -> None:
    for stop in ("<", "end", ">", "d>", "b<"):
        assert stream_runs([Run("ab"), hidden("<end>"), Run("c")], [stop])[1] is None, stop


def test_a_hidden_run_does_not_hide_a_stop_that_the_client_would_see() -> None:
    assert stream_runs([Run("xa"), hidden("<end>"), Run("b")], ["ab"]) == ([Run("x")], "ab")


def test_a_kept_stop_keeps_its_hidden_runs() -> None:
    runs = [Run("xa"), hidden("<end>"), Run("bc")]

    assert stream_runs(runs, ["a<end>b"], keep=True) == (
        [Run("x"), Run("a"), hidden("<end>"), Run("b")],
        "a<end>b",
    )


RUNS = st.one_of(st.text("ab<", min_size=1, max_size=3).map(Run), st.sampled_from(["<a>", "<", "ab"]).map(hidden))


@given(runs=st.lists(RUNS, max_size=8), stops=st.lists(st.text("ab<>", min_size=1, max_size=5), max_size=3))
@example(runs=[Run("a"), hidden("ab"), Run("b")], stops=["ab"])
@example(runs=[hidden("<a>"), Run("<"), hidden("<a>")], stops=["<<a>", "<a><"])
def test_any_runs_give_the_cut_of_the_whole_text(runs: list[Run], stops: list[str]) -> None:
    out, stop = stream_runs(runs, stops)

    assert (shown_text(out), stop) == reference_runs(runs, stops)
