"""What to generate: prompts out of arguments, files and standard input, each with its own sampling parameters.

Two formats: text, one prompt per line; and JSON lines, objects with "prompt", "prompt_token_ids" or "messages", an
optional "request_id", any of the sampling parameters, and what policies look at. Empty lines are skipped in both.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headway.config import ConfigError, SamplingParams, Structured
from headway.config.kinds import WrongKind, as_kind, kinds_of
from headway.config.structured import FORMS

SOURCES = ("prompt", "prompt_token_ids", "messages")
"""Keys of a JSON line, of which just one must be there."""

SERVICE: Mapping[str, Any] = {"priority": int, "cache_salt": str, "tenant": str, "deadline_s": float, "slo": str}
"""Keys that are neither sampling nor prompt; they mean what they mean to ``Engine.prepare``."""

_HINTS = {**kinds_of(SamplingParams), **SERVICE}


class PromptError(ValueError):
    """A prompt cannot be read.

    Attributes:
        where: place in the input, such as "line 3".
    """

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where


@dataclasses.dataclass(frozen=True)
class Job:
    """One request to make.

    Attributes:
        request_id: unique within the input.
        where: its place in the input, for errors.
        sampling: how to choose its tokens.
        given: which of these parameters were given; for the others the model may have defaults. ``None`` is all.
        service: what policies look at ("priority", "tenant", "deadline_s", "slo") and "cache_salt", if given.
        text, token_ids, messages: the prompt; one of them is set.
    """

    request_id: str
    where: str
    sampling: SamplingParams
    given: frozenset[str] | None = None
    service: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None

    def sampling_with(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """The parameters, with the model's where none were given."""
        if self.given is None:
            return self.sampling
        missing = {name: value for name, value in defaults.items() if name not in self.given}
        return dataclasses.replace(self.sampling, **missing)


def jobs_of_texts(texts: Iterable[str], sampling: Mapping[str, Any], *, chat: bool) -> list[Job]:
    """One job per text; ``chat`` makes it the user's message of a conversation."""
    return _jobs([(f"prompt {number}", text) for number, text in enumerate(texts, 1)], sampling, chat)


def jobs_of_lines(lines: Sequence[str], sampling: Mapping[str, Any], *, chat: bool, form: str = "auto") -> list[Job]:
    """Jobs of a file or of standard input.

    Args:
        lines: its lines.
        sampling: options given for all; a JSON line may override them.
        chat: whether plain prompts are the user's message of a conversation.
        form: "text", "jsonl", or "auto": JSON lines if the first line with content is a JSON object.

    Raises:
        PromptError: a line that cannot be used, with its number.
    """
    numbered = [(number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1) if line.strip()]
    if form == "auto":
        form = "jsonl" if numbered and _is_json_object(numbered[0][1]) else "text"
    if form == "text":
        return _jobs([(f"line {number}", line) for number, line in numbered], sampling, chat)
    jobs: list[Job] = []
    places: dict[str, str] = {}
    for index, (number, line) in enumerate(numbered):
        job = _job_of_json(f"line {number}", index, line, sampling, chat)
        if job.request_id in places:
            raise PromptError(job.where, f"request_id {job.request_id!r} is taken by {places[job.request_id]}")
        places[job.request_id] = job.where
        jobs.append(job)
    return jobs


def _jobs(texts: Sequence[tuple[str, str]], sampling: Mapping[str, Any], chat: bool) -> list[Job]:
    """One job per pair of place and text."""
    shared, given = SamplingParams(**sampling), frozenset(sampling)
    return [
        Job(str(index), where, shared, given, messages=user_message(text))
        if chat
        else Job(str(index), where, shared, given, text=text)
        for index, (where, text) in enumerate(texts)
    ]


def user_message(text: str) -> tuple[Mapping[str, Any], ...]:
    """A conversation that consists of one question."""
    return ({"role": "user", "content": text},)


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


def _job_of_json(where: str, index: int, line: str, sampling: Mapping[str, Any], chat: bool) -> Job:
    try:
        content = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(where, f"is not JSON ({error.msg})") from error
    if not isinstance(content, dict):
        raise PromptError(where, "is not a JSON object")
    given = [name for name in SOURCES if name in content]
    if len(given) != 1:
        raise PromptError(where, f"needs just one of {', '.join(SOURCES)}; it has {', '.join(given) or 'none'}")
    source, request_id = given[0], str(content.get("request_id", index))
    own = _options_of_json(
        where, {name: value for name, value in content.items() if name not in (source, "request_id")}
    )
    service = {name: own.pop(name) for name in SERVICE if name in own}
    try:
        job = Job(request_id, where, SamplingParams(**{**sampling, **own}), frozenset({*sampling, *own}), service)
    except ConfigError as error:
        raise PromptError(where, str(error)) from error
    return dataclasses.replace(job, **_prompt_of_json(where, source, content[source], chat))


def _prompt_of_json(where: str, source: str, value: Any, chat: bool) -> dict[str, Any]:
    if source == "prompt":
        if not isinstance(value, str):
            raise PromptError(where, "prompt must be text")
        return {"messages": user_message(value)} if chat else {"text": value}
    if source == "prompt_token_ids":
        if not isinstance(value, list) or any(type(token) is not int for token in value):
            raise PromptError(where, "prompt_token_ids must be a list of integers")
        return {"token_ids": tuple(value)}
    if not isinstance(value, list) or not value or any(not isinstance(message, dict) for message in value):
        raise PromptError(where, "messages must be a list of objects with role and content")
    return {"messages": tuple(value)}


def _options_of_json(where: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Options as dataclasses want them; JSON knows no tuples and no numbers as keys."""
    values: dict[str, Any] = {}
    for name, value in own.items():
        if name not in _HINTS:
            close = difflib.get_close_matches(name, [*_HINTS, *SOURCES, "request_id"], n=1)
            raise PromptError(where, f"unknown key {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        if name == "stop" and isinstance(value, str):
            value = [value]
        if name == "structured" and value is not None:
            value = _structured(where, value)
        if isinstance(value, dict):
            value = {int(key) if key.lstrip("-").isdigit() else key: number for key, number in value.items()}
        try:
            values[name] = as_kind(_HINTS[name], value)
        except WrongKind as wrong:
            raise PromptError(where, f"{name} cannot be {json.dumps(own[name])}: it {wrong}") from None
    return values


def _structured(where: str, form: Any) -> Structured:
    if not isinstance(form, dict):
        raise PromptError(where, f"structured must be an object with one of {', '.join(FORMS)}")
    try:
        return Structured.of(form)
    except ConfigError as error:
        raise PromptError(where, str(error)) from error
