"""Requests for simulations: made up from distributions, or read from public traces.

Traces have lengths and perhaps the identity of prompt blocks, but no text. A prompt is therefore a list of *segments*
(content, tokens); equal contents give equal tokens, which is all that prefix caching looks at.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import numpy.typing as npt

from headway.config import ConfigError, SamplingParams
from headway.core.mixing import UInt64, mix64
from headway.core.plan import Int32
from headway.core.request import Request

Float64 = npt.NDArray[np.float64]
Segments = tuple[tuple[int, int], ...]

UNIQUE = 1 << 40
"""Contents from here on are made up for prompts that share nothing; traces use smaller numbers."""

MOONCAKE_BLOCK = 512
"""Tokens that one entry of ``hash_ids`` stands for."""


class WorkloadError(ValueError):
    """A trace cannot be read.

    Attributes:
        line: number of the offending line, from 1.
    """

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"workload line {line}: {message}")
        self.line = line


@dataclass(frozen=True)
class Arrival:
    """One request of a workload.

    Attributes:
        arrival_s: when it comes, in seconds from the beginning.
        segments: its prompt, as (content, tokens).
        num_output_tokens: how many tokens it will generate.
        priority, tenant: as in ``core.request.Request``.
    """

    arrival_s: float
    segments: Segments
    num_output_tokens: int
    priority: int = 0
    tenant: str = ""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(tokens for _, tokens in self.segments)

    def prompt(self, vocab_size: int) -> Int32:
        """int32[num_prompt_tokens], the prompt's tokens."""
        parts = [_content(content, np.arange(tokens, dtype=np.uint64)) for content, tokens in self.segments]
        return (np.concatenate(parts) % np.uint64(vocab_size)).astype(np.int32)

    def request(self, name: str, vocab_size: int) -> Request:
        """The request that runs to exactly ``num_output_tokens``, unless memory or model length end it before."""
        sampling = SamplingParams(max_tokens=self.num_output_tokens, ignore_eos=True)
        return Request(name, self.prompt(vocab_size), sampling, priority=self.priority, tenant=self.tenant)


def _content(content: int, places: UInt64) -> UInt64:
    """What stands at these places of a content."""
    return mix64(mix64(np.array([content], np.uint64)) ^ places)


# --- made up ---------------------------------------------------------------------------------------------------


class Lengths(Protocol):
    """A distribution of lengths, in tokens."""

    def draw(self, random: np.random.Generator, count: int) -> Int32:
        """int32[count], each at least 1."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Every length from ``low`` to ``high`` is as likely as any other."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ConfigError("low", self.low, f"must be at least 1 and at most high ({self.high})")

    def draw(self, random: np.random.Generator, count: int) -> Int32:
        """See :class:`Lengths`."""
        return random.integers(self.low, self.high + 1, count, dtype=np.int32)


@dataclass(frozen=True)
class LogNormal:
    """Half of the lengths are below ``median``; ``sigma`` is the deviation of their logarithms; cut at ``longest``."""

    median: float
    sigma: float
    longest: int

    def __post_init__(self) -> None:
        if not 1.0 <= self.median <= self.longest:
            raise ConfigError("median", self.median, f"must be at least 1 and at most longest ({self.longest})")

    def draw(self, random: np.random.Generator, count: int) -> Int32:
        """See :class:`Lengths`."""
        lengths = np.rint(random.lognormal(np.log(self.median), self.sigma, count))
        return np.clip(lengths, 1, self.longest).astype(np.int32)


def poisson_arrivals(rate_per_s: float, count: int, seed: int) -> Float64:
    """float64[count], arrival times with independent, exponentially distributed gaps."""
    if not rate_per_s > 0:
        raise ConfigError("rate_per_s", rate_per_s, "must be above 0")
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate_per_s, count))


def make_workload(
    arrivals: Sequence[float] | Float64,
    prompts: Lengths,
    outputs: Lengths,
    *,
    seed: int,
    num_prefixes: int = 0,
    prefix_tokens: int = 0,
) -> list[Arrival]:
    """Requests at the given times, with lengths drawn independently.

    Args:
        arrivals: times in seconds.
        prompts: of what is each prompt's own.
        outputs: of the outputs.
        seed: of the draws.
        num_prefixes, prefix_tokens: put one of so many common beginnings of that length before each prompt.
    """
    random = np.random.default_rng(seed)
    count = len(arrivals)
    own, out = prompts.draw(random, count).tolist(), outputs.draw(random, count).tolist()
    prefix = random.integers(0, max(1, num_prefixes), count).tolist()
    return [
        Arrival(
            float(arrivals[index]),
            (*(((prefix[index], prefix_tokens),) if num_prefixes else ()), (UNIQUE + index, own[index])),
            out[index],
        )
        for index in range(count)
    ]


def rescaled(work: Iterable[Arrival], *, speed: float = 1.0, tokens: float = 1.0) -> list[Arrival]:
    """The same requests arriving ``speed`` times as fast, all lengths times ``tokens``, at least 1 each."""
    return [
        replace(
            arrival,
            arrival_s=arrival.arrival_s / speed,
            segments=tuple((content, max(1, round(length * tokens))) for content, length in arrival.segments),
            num_output_tokens=max(1, round(arrival.num_output_tokens * tokens)),
        )
        for arrival in work
    ]


# --- read ------------------------------------------------------------------------------------------------------


def read_mooncake(path: Path, limit: int | None = None) -> list[Arrival]:
    """A trace of Mooncake (Qin et al., FAST 2025): JSON lines, perhaps gzipped, with ``timestamp`` in milliseconds,
    ``input_length``, ``output_length`` and ``hash_ids``, one per 512 tokens of the prompt.

    Args:
        path: the file.
        limit: read at most so many requests.

    Raises:
        WorkloadError: a line is not of this form.
    """
    with _open(path) as file:
        return [_mooncake_arrival(number, line) for number, line in enumerate(islice(file, limit), 1)]


def _mooncake_arrival(number: int, text: str) -> Arrival:
    try:
        line: dict[str, Any] = json.loads(text)
        ids, length = line["hash_ids"], int(line["input_length"])
        if len(ids) != -(-length // MOONCAKE_BLOCK):
            raise ValueError(f"{len(ids)} hash_ids for {length} tokens, not one per {MOONCAKE_BLOCK}")
        lengths = [MOONCAKE_BLOCK] * (len(ids) - 1) + [length - MOONCAKE_BLOCK * (len(ids) - 1)]
        segments = tuple(zip(map(int, ids), lengths, strict=True))
        return Arrival(line["timestamp"] / 1000.0, segments, max(1, int(line["output_length"])))
    except (KeyError, TypeError, ValueError) as error:
        raise WorkloadError(number, f"not a request of a Mooncake trace: {error!r}") from error


def read_azure(path: Path, limit: int | None = None) -> list[Arrival]:
    """A trace of Azure's LLM inference (Patel et al., "Splitwise", ISCA 2024): CSV, perhaps gzipped.

    The columns are ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens`` as published, or ``arrival_s`` in seconds,
    ``input_tokens``, ``output_tokens``. Nothing is known about shared prefixes.

    Args:
        path: the file.
        limit: read at most so many requests.

    Raises:
        WorkloadError: a line is not of this form.
    """
    with _open(path) as file:
        rows = list(islice(_azure_rows(file), limit))
    start = rows[0][0] if rows else 0.0
    return [
        Arrival(at_s - start, ((UNIQUE + index, max(1, num_prompt)),), max(1, num_output))
        for index, (at_s, num_prompt, num_output) in enumerate(rows)
    ]


def _azure_rows(file: TextIO) -> Iterator[tuple[float, int, int]]:
    reader = csv.reader(file)
    header = next(reader, [])
    published = header[:1] == ["TIMESTAMP"]
    if not published and header[:3] != ["arrival_s", "input_tokens", "output_tokens"]:
        raise WorkloadError(1, f"not the columns of an Azure trace: {', '.join(header) or 'none'}")
    for row in reader:
        try:
            # The published stamps have seven digits of a second; six are understood.
            at_s = datetime.fromisoformat(row[0][:26]).timestamp() if published else float(row[0])
            yield at_s, int(row[1]), int(row[2])
        except (ValueError, IndexError) as error:
            raise WorkloadError(reader.line_num, f"not a request of an Azure trace: {error}") from error


def _open(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
