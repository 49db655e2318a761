"""Draws a run: requests over steps, the KV memory beneath, the tokens of each step at the bottom.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart; marks differ in shape as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from headway.cli.timeline import RequestLine, Timeline

DPI = 100
LEFT, RIGHT, TOP, BOTTOM = 230, 250, 84, 48
"""Margins in pixels: names on the left, legends on the right, title above."""
PANEL, GAP = 120, 34
"""Height of the two lower panels, and what is between panels, in pixels."""
SMALLEST, TALLEST = 700, 2400
"""Limits of the height that is chosen by the number of requests, in pixels."""
MOST_NAMED = 60
"""With more requests than this, rows are numbered instead of named, and marks carry no numbers."""

BLUE, ORANGE, GREEN, RED, PURPLE, BLACK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#222222"
PALE = "#ECECEC"

CHUNK_SHADES = LinearSegmentedColormap.from_list("chunk", ["#A9D5F0", BLUE, "#00344F"])
AGAIN_SHADES = LinearSegmentedColormap.from_list("again", ["#EFC9DE", PURPLE, "#7A2F58"])
WAITS = {"kv_short": ("#EBA98A", "waits for KV blocks"), "prefix_in_flight": ("#7FCBB4", "waits for a shared prefix")}
OTHER_WAIT = ("#BDBDBD", "waits for its turn")
FINISH_MARKS = {"stop": ("o", "end: it was done"), "length": ("s", "end: most tokens allowed")}
OTHER_FINISH = ("X", "end: aborted or failed")

Points = list[tuple[float, float]]


def draw(timeline: Timeline, target: Path, *, width: int = 1700, height: int | None = None) -> None:
    """Write a PNG.

    Args:
        timeline: the run.
        target: file to write; its folder must exist.
        width, height: in pixels; by default the height follows the number of requests.
    """
    if height is None:
        height = int(np.clip(480 + 24 * len(timeline.requests), SMALLEST, TALLEST))
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        FigureCanvasAgg(figure)
        rows, blocks, tokens = _lay_out(figure, timeline, width, height)
        _draw_requests(rows, timeline)
        _draw_blocks(blocks, timeline)
        _draw_tokens(tokens, timeline)
        figure.savefig(target, dpi=DPI, format="png", metadata={"Software": "Headway"})


def _lay_out(figure: Figure, timeline: Timeline, width: int, height: int) -> tuple[Axes, Axes, Axes]:
    """Three panels over one axis of steps, with room for names on the left and legends on the right."""
    inner = width - LEFT - RIGHT
    bottoms = [BOTTOM + 2 * (PANEL + GAP), BOTTOM + PANEL + GAP, BOTTOM]
    tops = [height - TOP, bottoms[0] - GAP, bottoms[1] - GAP]
    panels: list[Axes] = []
    for bottom, top in zip(bottoms, tops, strict=True):
        place = (LEFT / width, bottom / height, inner / width, (top - bottom) / height)
        panels.append(figure.add_axes(place, sharex=panels[0] if panels else None))
        panels[-1].tick_params(length=3, color="#888888", labelbottom=bottom == BOTTOM)
    panels[0].set_xlim(0.5, max(timeline.num_steps, 1) * 1.012 + 0.5)
    panels[-1].set_xlabel("step")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=14))
    title = f"{len(timeline.requests)} requests in {len(timeline.steps)} steps"
    if "model" in timeline.run:
        title += f" of {timeline.run['model']}"
    scheduler, cache = timeline.scheduler, timeline.cache
    limits = (
        f"At most {scheduler.max_num_batched_tokens:,} tokens and {scheduler.max_num_seqs:,} requests a step;"
        f" {cache.num_blocks:,} KV blocks of {cache.block_size} tokens; policy {scheduler.scheduling_policy}."
    )
    figure.text(LEFT / width, 1 - 28 / height, title, fontsize=15, fontweight="bold", color=BLACK)
    figure.text(LEFT / width, 1 - 50 / height, limits, fontsize=10, color="#555555")
    return panels[0], panels[1], panels[2]


# --- requests --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Style:
    """How rows look: with few requests there is room between them, with many they touch.

    Attributes:
        decode, chunk: half the height of their boxes, in rows.
        gap: white between neighbouring chunks, in points.
        wait: thickness of lines, in points.
        marks: factor for the size of marks.
    """

    decode: float
    chunk: float
    gap: float
    wait: float
    marks: float


def _draw_requests(axes: Axes, timeline: Timeline) -> None:
    requests = timeline.requests
    named = len(requests) <= MOST_NAMED
    style = _Style(0.2, 0.38, 0.5, 1.6, 1.0) if named else _Style(0.5, 0.5, 0.0, 0.5, 0.5)
    shade = Normalize(0, timeline.scheduler.max_num_batched_tokens)
    waits: dict[str, list[Points]] = {}
    decodes, chunks = _Boxes(style.decode), _Boxes(style.chunk, style.gap if timeline.num_steps < 500 else 0.0)
    for row, line in enumerate(requests):
        for code, first, last in _wait_spans(line):
            waits.setdefault(WAITS.get(code, OTHER_WAIT)[0], []).append([(first - 0.5, row), (last + 0.5, row)])
        for first, last in _runs(line.decodes):
            decodes.add(row, first, last, ORANGE)
        for chunk in line.chunks:
            shades = AGAIN_SHADES if chunk.num_again else CHUNK_SHADES
            chunks.add(row, chunk.step, chunk.step, shades(shade(chunk.num_tokens)))
    for colour, spans in sorted(waits.items()):
        axes.add_collection(LineCollection(spans, colors=colour, linewidths=style.wait, capstyle="butt"))
    axes.add_collection(decodes.collection())
    axes.add_collection(chunks.collection())
    _draw_marks(axes, requests, style.marks)
    if named:
        _note_hits(axes, requests)
    _name_rows(axes, requests, named)
    _legend(axes, _request_legend(timeline))


class _Boxes:
    """Boxes of one height, drawn in one go; ``gap`` is the white between neighbours, in points."""

    def __init__(self, half_height: float, gap: float = 0.0) -> None:
        self._half = half_height
        self._gap = gap
        self._boxes: list[Points] = []
        self._colours: list[Any] = []

    def add(self, row: int, first: int, last: int, colour: Any) -> None:
        self._boxes.append(_box(row, first, last, self._half))
        self._colours.append(colour)

    def collection(self) -> PolyCollection:
        return PolyCollection(self._boxes, facecolors=self._colours, edgecolors="white", linewidths=self._gap, zorder=3)


def _box(row: int, first: int, last: int, half_height: float) -> Points:
    left, right, low, high = first - 0.5, last + 0.5, row - half_height, row + half_height
    return [(left, low), (right, low), (right, high), (left, high)]


def _runs(steps: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    for _, group in groupby(enumerate(steps), lambda pair: pair[1] - pair[0]):
        run = [step for _, step in group]
        yield run[0], run[-1]


def _wait_spans(line: RequestLine) -> Iterator[tuple[str, int, int]]:
    """Reason, first and last step of each time it waited for one reason."""
    for (code, _), group in groupby(
        ((code, step - place, step) for place, (step, code) in enumerate(line.waits)), lambda item: item[:2]
    ):
        run = [step for _, _, step in group]
        yield code, run[0], run[-1]


def _draw_marks(axes: Axes, requests: list[RequestLine], scale: float) -> None:
    """Hits, preemptions, resumptions and ends, each kind in one go."""
    hits: Points = [(hit.step - 0.5, row) for row, line in enumerate(requests) for hit in line.hits]
    resumed: Points = [(step - 0.5, row - 0.42) for row, line in enumerate(requests) for step in line.admissions[1:]]
    lost: dict[str, Points] = {"recompute": [], "swap": []}
    for row, line in enumerate(requests):
        for event in line.preemptions:
            lost[event.kind].append((event.step, row))
    ends: dict[str, Points] = {}
    for row, line in enumerate(requests):
        if line.finish is not None:
            step, reason = line.finish
            ends.setdefault(FINISH_MARKS.get(reason, OTHER_FINISH)[0], []).append((step + 0.5, row))
    kinds: list[tuple[str, str, float, Points]] = [("D", GREEN, 5.0, hits), ("^", BLACK, 6.5, resumed)]
    kinds += [
        ("v", RED, 9.0, lost["recompute"]),
        ("v", BLUE, 9.0, lost["swap"]),
        *((marker, BLACK, 5.5, points) for marker, points in sorted(ends.items())),
    ]
    for marker, colour, size, points in kinds:
        if points:
            axes.plot(
                [step for step, _ in points],
                [row for _, row in points],
                linestyle="none",
                marker=marker,
                markersize=size * scale,
                color=colour,
                markeredgecolor="white",
                markeredgewidth=scale,
                zorder=5,
                clip_on=False,
            )


def _note_hits(axes: Axes, requests: list[RequestLine]) -> None:
    """How many tokens each hit found, left of its mark, or above it where the names of the rows are too near."""
    edge = 0.03 * axes.get_xlim()[1]
    for row, line in enumerate(requests):
        for hit in line.hits:
            near = hit.step < edge
            axes.annotate(
                f"{hit.num_tokens:,}",
                (hit.step - 0.5, row),
                xytext=(-2, 5) if near else (-5, 0),
                textcoords="offset points",
                ha="left" if near else "right",
                va="bottom" if near else "center",
                fontsize=7,
                color=GREEN,
                path_effects=[withStroke(linewidth=2, foreground="white")],
                zorder=4,
            )


def _name_rows(axes: Axes, requests: list[RequestLine], named: bool) -> None:
    axes.set_ylim(max(len(requests), 1) - 0.3, -0.9)
    if named:
        labels = [f"{line.request_id}   {line.num_prompt_tokens:,} + {line.num_output_tokens:,}" for line in requests]
        axes.set_yticks(range(len(requests)), labels)
        axes.tick_params(axis="y", length=0)
        axes.set_title("request   prompt + output tokens  ", x=0, ha="right", fontsize=8, color="#555555")
    else:
        axes.set_ylabel("requests in order of arrival")
    axes.grid(axis="x", color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)


def _request_legend(timeline: Timeline) -> list[Any]:
    """Only what occurs in the picture is explained."""
    requests = timeline.requests
    codes = {code for line in requests for _, code in line.waits}
    entries: list[Any] = [
        Patch(color=CHUNK_SHADES(0.5), label="prompt chunk, darker: longer"),
        Patch(color=ORANGE, label="decodes, one token a step"),
    ]
    if any(line.hits for line in requests):
        entries.append(_dot("D", GREEN, "prefix hit, tokens found"))
    kinds = {event.kind for line in requests for event in line.preemptions}
    if "recompute" in kinds:
        entries.append(_dot("v", RED, "preempted: loses its blocks"))
    if "swap" in kinds:
        entries.append(_dot("v", BLUE, "preempted: blocks to the host"))
    if kinds:
        entries.append(_dot("^", BLACK, "resumed"))
    if any(line.num_again for line in requests):
        entries.append(Patch(color=AGAIN_SHADES(0.5), label="computes tokens again"))
    shown = [WAITS[code] for code in WAITS if code in codes]
    shown += [OTHER_WAIT] if codes - set(WAITS) else []
    entries += [Line2D([], [], color=colour, linewidth=2.5, label=label) for colour, label in shown]
    reasons = {line.finish[1] for line in requests if line.finish is not None}
    ends = [FINISH_MARKS[reason] for reason in FINISH_MARKS if reason in reasons]
    ends += [OTHER_FINISH] if reasons - set(FINISH_MARKS) else []
    return entries + [_dot(marker, BLACK, label) for marker, label in ends]


def _dot(marker: str, colour: str, label: str) -> Line2D:
    return Line2D([], [], marker=marker, color=colour, markersize=7, linestyle="none", label=label)


# --- memory and tokens -----------------------------------------------------------------------------------------


def _per_step(timeline: Timeline, name: str) -> npt.NDArray[np.int64]:
    """A column of the steps, int64[num_steps + 2]; steps without rows count as 0, and so do both ends."""
    column = np.zeros(timeline.num_steps + 2, np.int64)
    for step in timeline.steps:
        column[step.step] = getattr(step, name)
    return column


def _draw_blocks(axes: Axes, timeline: Timeline) -> None:
    held, cached = _per_step(timeline, "num_held"), _per_step(timeline, "num_cached")
    total = timeline.cache.num_blocks
    axes.axhspan(0, total, color=PALE, linewidth=0)
    _stack(axes, [(held, BLUE), (cached, "#7FCBB4")])
    axes.axhline(total, color=BLACK, linewidth=1.2, linestyle="--")
    axes.set_ylim(0, total * 1.08)
    axes.set_ylabel("KV blocks")
    _legend(
        axes,
        [
            Line2D([], [], color=BLACK, linestyle="--", linewidth=1.2, label=f"all: {total:,}"),
            Patch(color=PALE, label="free and empty"),
            Patch(color="#7FCBB4", label="free, still cached"),
            Patch(color=BLUE, label="held by requests"),
        ],
    )


def _draw_tokens(axes: Axes, timeline: Timeline) -> None:
    decode, prefill, again = (_per_step(timeline, name) for name in ("num_decode", "num_prefill", "num_again"))
    budget = timeline.scheduler.max_num_batched_tokens
    _stack(axes, [(decode, ORANGE), (prefill - again, BLUE), (again, PURPLE)])
    axes.axhline(budget, color=BLACK, linewidth=1.2, linestyle="--")
    axes.set_ylim(0, budget * 1.08)
    axes.set_ylabel("tokens in the step")
    entries = [
        Line2D([], [], color=BLACK, linestyle="--", linewidth=1.2, label=f"budget: {budget:,}"),
        Patch(color=BLUE, label="prompt chunks"),
        Patch(color=ORANGE, label="decodes"),
    ]
    if again.any():
        entries.insert(1, Patch(color=PURPLE, label="computed again"))
    _legend(axes, entries)


def _stack(axes: Axes, layers: list[tuple[npt.NDArray[np.int64], str]]) -> None:
    """Layers upon each other, one step wide each."""
    steps, base = np.arange(len(layers[0][0])), np.zeros(len(layers[0][0]), np.int64)
    for height, colour in layers:
        axes.fill_between(steps, base, base + height, step="mid", color=colour, linewidth=0)
        base = base + height


def _legend(axes: Axes, entries: list[Any]) -> None:
    axes.legend(
        handles=entries, loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8.5, handlelength=1.4
    )
