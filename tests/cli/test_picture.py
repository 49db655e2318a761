"""The picture of a run is a PNG of the wanted size, and shows what happened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from headway.cli import picture
from headway.cli.picture import draw
from tests.cli.builders import PROMPTS, record, timeline_of


def drawn(tmp_path: Path, trace: str, **size: int) -> np.ndarray:
    """The picture as float [height, width, 4]."""
    target = tmp_path / "run.png"
    draw(timeline_of(trace), target, **size)
    assert target.read_bytes().startswith(b"\x89PNG\r\n")
    return imread(target)


def pixels(image: np.ndarray, colour: str) -> int:
    """How many pixels have this colour."""
    return int((np.abs(image[:, :, :3] - to_rgb(colour)).max(axis=2) < 0.02).sum())


def test_size_is_as_asked_for(tmp_path: Path) -> None:
    assert drawn(tmp_path, record(), width=900, height=700).shape[:2] == (700, 900)


def test_height_follows_the_number_of_requests(tmp_path: Path) -> None:
    few = drawn(tmp_path, record())
    many = drawn(tmp_path, record({f"r{number}": [number, 1, 2] for number in range(30)}))

    assert few.shape[0] < many.shape[0]


def test_preemptions_and_hits_are_marked_only_if_there_were_any(tmp_path: Path) -> None:
    with_all = drawn(tmp_path, record())
    without = drawn(tmp_path, record({"a": [1, 2], "b": [3, 4]}, num_blocks=100))

    for colour in (picture.RED, picture.GREEN, picture.PURPLE):
        assert pixels(with_all, colour) > 20
        assert pixels(without, colour) == 0
    for colour in (picture.ORANGE, picture.BLUE):
        assert pixels(without, colour) > 100


def test_swaps_look_different(tmp_path: Path) -> None:
    image = drawn(tmp_path, record(num_host_blocks=40, preemption_mode="swap", enable_prefix_caching=False))

    assert pixels(image, picture.RED) == pixels(image, picture.PURPLE) == 0


@pytest.mark.parametrize("requests", [1, picture.MOST_NAMED + 40])
def test_very_few_and_very_many_requests(tmp_path: Path, requests: int) -> None:
    prompts = {f"request-{number}": [number, *PROMPTS["first"]] for number in range(requests)}

    image = drawn(tmp_path, record(prompts, num_blocks=60), width=1000, height=800)

    assert pixels(image, picture.ORANGE) > 100


def test_equal_runs_make_equal_pictures(tmp_path: Path) -> None:
    first = drawn(tmp_path, record())
    second = drawn(tmp_path, record())

    assert (first == second).all()


def test_a_trace_without_steps_can_be_drawn(tmp_path: Path) -> None:
    image = drawn(tmp_path, record({}), width=800, height=700)

    assert image.shape[:2] == (700, 800)
