"""Lines on what the server does: only when something is going on, with the reasons in the usual words."""

from __future__ import annotations

import logging
import re

import pytest

from headway.server.status_log import Moment, status_line
from tests.engine.test_monitor import Watched
from tests.server.running import serving


def test_a_line_has_what_is_going_on_and_what_happened() -> None:
    watched = Watched(max_num_seqs=1)
    before = watched.steps(0)
    for name in "abc":
        watched.add(name, 9, 30)
    now = watched.steps(5)

    assert status_line(Moment(before, 0), Moment(now, 2)) == (
        "1 running, 2 waiting (1 behind others in the queue, 1 all slots taken); 4% of the KV blocks held;"
        " 1 tokens/s sampled, 3 computed; 0% of new prompts cached; 2 calls turned away"
    )
    assert status_line(Moment(now, 2), Moment(now, 2)).startswith("1 running, 2 waiting")


def test_preemptions_are_in_it() -> None:
    watched = Watched(num_blocks=10)
    before = watched.steps(0)
    for name in "abc":
        watched.add(name, 9, 20)

    line = status_line(Moment(before, 0), Moment(watched.steps(12), 0))

    assert re.search("[12] preemptions?$", line)


def test_an_idle_server_says_nothing() -> None:
    watched = Watched()
    idle = watched.steps(0)

    assert status_line(Moment(idle, 3), Moment(idle, 3)) == ""
    assert "1 call turned away" in status_line(Moment(idle, 3), Moment(idle, 4))


def test_a_server_says_it_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headway.server.run")
    with serving(options={"status_interval": 0.02}) as server:
        server.service.engine.snapshot_age_s = -1.0
        server.until(lambda: server.complete("abc").status_code == 200 and "tokens/s sampled" in caplog.text)
