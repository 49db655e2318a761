"""Where chunking, prefix hits and preemption happened in a run, one sentence each."""

from __future__ import annotations

from dataclasses import dataclass

from headway.cli.timeline import RequestLine, Timeline


@dataclass(frozen=True)
class Finding:
    """One kind of thing.

    Attributes:
        name: "chunking", "prefix hits" or "preemption".
        count: requests chunked, admissions with a hit, preemptions; 0 means that it did not happen.
        sentence: how often, and where it shows best.
    """

    name: str
    count: int
    sentence: str


def find_all(timeline: Timeline) -> tuple[Finding, Finding, Finding]:
    """The three, in the order in which a request meets them."""
    return find_chunking(timeline), find_hits(timeline), find_preemption(timeline)


def find_chunking(timeline: Timeline) -> Finding:
    """Prompts that were computed in several steps."""
    chunked = [line for line in timeline.requests if any(chunk.is_part for chunk in line.chunks)]
    if not chunked:
        return Finding("chunking", 0, "no prompt was cut into chunks")
    best = max(chunked, key=lambda line: sum(chunk.is_part for chunk in line.chunks))
    parts = [chunk for chunk in best.chunks if chunk.is_part]
    sizes = ", ".join(str(chunk.num_tokens) for chunk in parts)
    sentence = (
        f"{_count(len(chunked), 'prompt')} did not fit one step; {best.request_id} ran in {len(parts)} chunks"
        f" of {sizes} tokens, steps {parts[0].step} to {parts[-1].step}"
    )
    return Finding("chunking", len(chunked), sentence)


def find_hits(timeline: Timeline) -> Finding:
    """Requests that began with tokens from the prefix cache. What resumed ones found again does not count."""
    hits = [(hit, line) for line in timeline.requests for hit in line.hits if not hit.resumed]
    if not hits:
        return Finding("prefix hits", 0, "no request found a prefix in the cache")
    best, line = max(hits, key=lambda pair: pair[0].num_tokens)
    sentence = (
        f"{_count(len(hits), 'request')} started from the cache, {sum(hit.num_tokens for hit, _ in hits):,} tokens;"
        f" {line.request_id} found {best.num_tokens:,} of its {line.num_prompt_tokens:,} at step {best.step}"
    )
    return Finding("prefix hits", len(hits), sentence)


def find_preemption(timeline: Timeline) -> Finding:
    """Requests that lost their blocks."""
    events = [(event, line) for line in timeline.requests for event in line.preemptions]
    if not events:
        return Finding("preemption", 0, "no request was preempted")
    event, line = min(events, key=lambda pair: pair[0].step)
    whom = event.by or "others"
    if event.kind == "swap":
        what = f"had {event.num_copied_blocks:,} blocks copied to the host to make room for {whom}"
    else:
        what = f"gave its blocks ({event.num_lost_tokens:,} tokens) to {whom}"
    sentence = f"{_count(len(events), 'time')}; first at step {event.step}: {line.request_id} {what}"
    return Finding("preemption", len(events), sentence + _how_it_came_back(line, event.step))


def _how_it_came_back(line: RequestLine, step: int) -> str:
    resumed = next((admission for admission in line.admissions if admission > step), None)
    if resumed is None:
        return " and never came back"
    found = sum(hit.num_tokens for hit in line.hits if hit.step == resumed)
    return f" and came back at step {resumed}" + (f" with {found:,} tokens found in the cache" if found else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
