"""The prompts of ``engine.py``: read from a file, or made from text that comes with Python.

Both kinds have the same lengths, and lengths are what the time depends on: output is greedy, end-of-text is ignored.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

Tokens = list[int]

# fmt: off
MAIN_LENGTHS = (
    75, 281, 408, 215, 144, 501, 87, 266, 220, 432, 457, 488, 145, 163, 384, 77, 104, 311, 138, 91, 186, 257, 335, 327,
    108, 466, 392, 281, 378, 66, 379, 352, 381, 465, 91, 187, 375, 289, 67, 185, 315, 424, 264, 93, 75, 353, 287, 495,
    320, 64, 315, 398, 345, 213, 355, 72, 372, 175, 466, 480, 363, 85, 439, 241,
)
# fmt: on
"""Tokens of the main prompts: 64 prompts, 17,563 tokens, between 64 and 512 each."""

MAIN_OUTPUTS = 128
SINGLE_LENGTH, SINGLE_OUTPUTS = 64, 128
LONG_LENGTH = 2000
NUM_SHARED, PREFIX_LENGTH, OWN_LENGTH, SHARED_OUTPUTS = 64, 1024, 32, 32
NUM_WARM, WARM_LENGTH = 4, 100


@dataclass(frozen=True)
class EngineWork:
    """Prompts as token ids, and outputs per prompt.

    Attributes:
        source: where the prompts are from, for the report.
        single: one prompt that runs alone.
        long: one prompt whose first token is waited for.
        main: prompts that all arrive at once.
        shared: the same, with a common beginning.
        warm: prompts to warm up with.
    """

    source: str
    single: Tokens
    long: Tokens
    main: list[Tokens]
    shared: list[Tokens]
    warm: list[Tokens]
    single_outputs: int = SINGLE_OUTPUTS
    main_outputs: int = MAIN_OUTPUTS
    shared_outputs: int = SHARED_OUTPUTS

    def shortened(self) -> EngineWork:
        """A sixteenth of the work: shows that all runs, says little about speed."""
        return replace(
            self,
            source=f"{self.source}, shortened",
            long=self.long[:500],
            main=self.main[:16],
            shared=self.shared[:16],
            single_outputs=32,
            main_outputs=32,
            shared_outputs=8,
        )


def read_work(path: Path) -> EngineWork:
    """A workload file: JSON, perhaps gzipped, with ``main``, ``shared``, ``single``, ``ttft2000`` and ``warm``."""
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return EngineWork(
        source=path.name,
        single=found["single"]["prompt"],
        long=found["ttft2000"]["prompt"],
        main=found["main"]["prompts"],
        shared=found["shared"]["prompts"],
        warm=found["warm"]["prompts"],
        single_outputs=found["single"]["max_tokens"],
        main_outputs=found["main"]["max_tokens"],
        shared_outputs=found["shared"]["max_tokens"],
    )


def make_work(encode: Callable[[str], Sequence[int]]) -> EngineWork:
    """The same lengths cut from the texts that ``help()`` shows, one piece after the other, none used twice."""
    lengths = [*MAIN_LENGTHS, LONG_LENGTH, SINGLE_LENGTH, PREFIX_LENGTH]
    lengths += [OWN_LENGTH] * NUM_SHARED + [WARM_LENGTH] * NUM_WARM
    pieces = cut(read_tokens(encode, sum(lengths)), lengths)
    main, rest = pieces[: len(MAIN_LENGTHS)], pieces[len(MAIN_LENGTHS) :]
    long, single, prefix = rest[:3]
    shared = [prefix + own for own in rest[3 : 3 + NUM_SHARED]]
    return EngineWork("made from Python's help texts", single, long, main, shared, rest[3 + NUM_SHARED :])


def read_tokens(encode: Callable[[str], Sequence[int]], num_tokens: int) -> Tokens:
    """The first ``num_tokens`` tokens of the help texts, in the order of their names."""
    tokens: Tokens = []
    for name in sorted(topics):
        tokens += encode(topics[name])
        if len(tokens) >= num_tokens:
            return tokens[:num_tokens]
    raise ValueError(f"the help texts have {len(tokens)} tokens, {num_tokens} are needed")


def cut(tokens: Tokens, lengths: Sequence[int]) -> list[Tokens]:
    """Cut into pieces of these lengths."""
    pieces, start = [], 0
    for length in lengths:
        pieces.append(tokens[start : start + length])
        start += length
    return pieces
