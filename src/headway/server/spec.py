"""From a body to what it asks of the engine, with every limit checked: pure, no work done yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from headway.config import ConfigError, SamplingParams
from headway.config.server import ServerOptions
from headway.server.errors import ApiError, bad_option, invalid
from headway.server.forms import form_of
from headway.server.protocol.chat import ChatBody
from headway.server.protocol.completions import CompletionBody
from headway.server.protocol.generation import GenerationBody
from headway.server.protocol.tokens import TokenizeBody
from headway.server.reasoning import ReasoningFormat
from headway.server.tools.choosing import ChatSupport, plan_tools
from headway.server.tools.dialects import Tool
from headway.server.tools.legacy import in_its_words, with_tools
from headway.server.tools.parsers import ToolParser
from headway.server.variables import template_variables

DEFAULT_COMPLETION_TOKENS = 16
"""``max_tokens`` of a completion that does not say; a chat answer may go on to the end of the context."""
MOST_CHARS_PER_TOKEN = 16
"""No text of any length has more, but for long runs of one character; usual ones have about four."""
MAX_BIAS = 100.0
MAX_ID_DIGITS = 10
MAX_NAME_CHARS = 256
MAX_TIMEOUT_S = 86400.0


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation, which the chat template makes a text of.

    Attributes:
        messages, tools: as the template gets them.
        variables: for the template, as far as it knows them.
        add_generation_prompt: whether the prompt ends with what opens the assistant's turn.
        continue_final_message: whether it ends within the last message instead.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Tool, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @cached_property
    def num_chars(self) -> int:
        """Characters of everything that the template may write."""
        return _num_chars([self.messages, self.tools, self.variables])

    @property
    def num_content_chars(self) -> int:
        """Characters in its messages, which every template writes."""
        return sum(len(message["content"]) for message in self.messages)


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt as the answer repeats it.

    Attributes:
        text: what the client sent, or what its token ids stand for.
        places: where the tokens of a text begin in it, if the answer says so.
    """

    text: str
    places: Sequence[int] = ()


PromptInput = str | tuple[int, ...] | ChatPrompt


@dataclass(frozen=True)
class CallSpec:
    """What one call asks for.

    Attributes:
        prompts: texts, token ids or conversations.
        prompt_field: what the client calls them.
        sampling: of the first choice of each prompt.
        form_field: what the client calls the form of the output, if it has one.
        make_tool_parser: for each choice whose text may have tool calls.
        reasoning: how the model marks its reasoning, which is told apart.
        show_reasoning: whether the client is to see it.
        legacy_calls: whether a call is shown as OpenAI's API did before there were tools.
        n: choices to answer with, per prompt.
        candidates: choices to generate, per prompt; the likeliest ``n`` are kept.
        scores_only: whether the prompt alone is wanted, and no token of the output.
        echo: whether choices begin with their prompt.
        wants_logprobs: whether the answer shows log probabilities; ``best_of`` has them computed without showing.
        stream, include_usage, continuous_usage, return_token_ids: how to answer.
        priority, cache_salt, deadline_s, slo: for the scheduler.
        user: the client's name for who asks.
        timeout_s: it must have begun by then.
        model: the name the client used; ``None`` for the default.
    """

    prompts: tuple[PromptInput, ...]
    prompt_field: str
    sampling: SamplingParams
    form_field: str = ""
    make_tool_parser: Callable[[], ToolParser] | None = None
    reasoning: ReasoningFormat | None = None
    show_reasoning: bool = True
    legacy_calls: bool = False
    n: int = 1
    candidates: int = 1
    scores_only: bool = False
    echo: bool = False
    wants_logprobs: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    priority: int = 0
    cache_salt: str = ""
    deadline_s: float | None = None
    slo: str = ""
    user: str = ""
    timeout_s: float | None = None
    model: str | None = None

    @property
    def num_requests(self) -> int:
        """Generations it takes: what the call costs."""
        return len(self.prompts) * self.candidates

    @property
    def fewest_tokens(self) -> int:
        """Prompt tokens that it takes at least, as far as can be told without tokenising."""
        return sum(map(_fewest_tokens, self.prompts)) * self.candidates


def sampling_of(sampling: SamplingParams, candidate: int) -> SamplingParams:
    """Parameters of one candidate. With a seed, each draws from a seed of its own, and the first from the given."""
    if candidate == 0 or sampling.seed is None:
        return sampling
    return replace(sampling, seed=sampling.seed + candidate)


def _num_chars(values: list[Any]) -> int:
    """Characters of all texts in JSON values."""
    total, rest = 0, values
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, Mapping):
            rest += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            rest += value
        else:
            total += 1
    return total


def _fewest_tokens(prompt: PromptInput) -> int:
    if isinstance(prompt, tuple):
        return len(prompt)
    num_chars = len(prompt) if isinstance(prompt, str) else prompt.num_content_chars
    return max(1, num_chars // MOST_CHARS_PER_TOKEN)


def completion_spec(body: CompletionBody, options: ServerOptions, max_model_len: int) -> CallSpec:
    """What a completion asks for.

    Raises:
        ApiError: a field is out of bounds.
    """
    prompts = _list_prompts(body.prompt)
    _at_most("prompt", len(prompts), options.max_prompts, "prompts")
    n = _count("n", body.n, options.max_n)
    candidates = _count("best_of", body.best_of, options.max_n) if body.best_of is not None else n
    if candidates < n:
        raise invalid(f"best_of is {candidates}; it must be at least n ({n})", "best_of")
    if candidates > n and body.stream:
        raise invalid("best_of cannot be streamed: which choices are best is known only at the end", "best_of")
    scores_only = body.max_tokens == 0
    if scores_only and not body.echo:
        raise invalid("max_tokens is 0, which leaves nothing to answer unless echo is true", "max_tokens")
    wants_logprobs = body.logprobs is not None
    if body.echo and body.stream and wants_logprobs:
        raise invalid("log probabilities of an echoed prompt cannot be streamed", "stream")
    settings: dict[str, Any] = {"max_tokens": DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens}
    if scores_only:
        settings["max_tokens"] = 1  # one token is sampled and left out: a prompt has no end of its own
    settings["logprobs"] = _num_logprobs("logprobs", body.logprobs, options)
    if body.echo and wants_logprobs:
        settings["prompt_logprobs"] = settings["logprobs"]
    if candidates > n and not wants_logprobs:
        settings["logprobs"] = 0
    settings["structured"], form_field = form_of(body, options)
    return _spec(
        body,
        options,
        max_model_len,
        settings,
        prompts=prompts,
        prompt_field="prompt",
        form_field=form_field,
        n=n,
        candidates=candidates,
        scores_only=scores_only,
        echo=bool(body.echo),
        wants_logprobs=wants_logprobs,
    )


def chat_spec(body: ChatBody, options: ServerOptions, max_model_len: int, support: ChatSupport) -> CallSpec:
    """What a chat call asks for; ``support`` is what the model can do.

    Raises:
        ApiError: a field is out of bounds.
    """
    if len(body.messages) > max_model_len:
        message = f"there are {len(body.messages)} messages; the context of {max_model_len} tokens holds fewer"
        raise invalid(message, "messages", "context_length_exceeded")
    for name, given in (("tools", body.tools), ("functions", body.functions)):  # before they are made anything of
        _at_most(name, len(given or ()), options.max_tools, name)
    n = _count("n", body.n, options.max_n)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if body.max_tokens is not None and max_tokens != body.max_tokens:
        raise invalid("max_tokens and max_completion_tokens differ; give one of them", "max_completion_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    wanted = (body.top_logprobs or 0) if body.logprobs else None
    with in_its_words(body):
        plan = plan_tools(with_tools(body), *form_of(body, options), options, support)
    settings: dict[str, Any] = {
        "max_tokens": max_tokens,
        "logprobs": _num_logprobs("top_logprobs", wanted, options),
        "structured": plan.form,
    }
    return _spec(
        body,
        options,
        max_model_len,
        settings,
        prompts=(replace(conversation(body, plan.tools), variables=template_variables(body)),),
        prompt_field="messages",
        form_field=plan.form_field,
        make_tool_parser=plan.make_parser,
        reasoning=support.reasoning,
        show_reasoning=body.include_reasoning is not False,
        legacy_calls=bool(body.functions),
        n=n,
        candidates=n,
        wants_logprobs=bool(body.logprobs),
    )


def conversation(body: ChatBody | TokenizeBody, tools: tuple[Tool, ...] = ()) -> ChatPrompt:
    """A conversation as a prompt.

    Raises:
        ApiError: there are no messages, or the last one cannot be continued.
    """
    messages = body.messages
    if not messages:
        raise invalid("messages is empty; there must be one at least", "messages", "invalid_prompt")
    inputs = tuple(message.as_template_input() for message in messages)
    goes_on = bool(body.continue_final_message)
    if goes_on and body.add_generation_prompt:
        message = "continue_final_message and add_generation_prompt exclude each other: one ends within a message"
        raise invalid(message, "continue_final_message")
    if goes_on and (not inputs[-1]["content"].strip() or "tool_calls" in inputs[-1]):
        message = "continue_final_message needs a last message with a text, and without calls"
        raise invalid(message, "continue_final_message")
    return ChatPrompt(
        inputs, tools, add_generation_prompt=body.add_generation_prompt is not False, continue_final_message=goes_on
    )


def _list_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> tuple[PromptInput, ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise invalid("prompt is an empty list; there must be one prompt at least", "prompt", "invalid_prompt")
    if isinstance(prompt[0], int):
        return (tuple(prompt),)
    return tuple(each if isinstance(each, str) else tuple(each) for each in prompt)


def _spec(
    body: GenerationBody, options: ServerOptions, max_model_len: int, settings: dict[str, Any], **fields: Any
) -> CallSpec:
    """The part that both endpoints share."""
    if fields["prompts"] and len(fields["prompts"]) * fields["candidates"] > options.max_sequences:
        total = len(fields["prompts"]) * fields["candidates"]
        message = f"{len(fields['prompts'])} prompts with {fields['candidates']} choices each are {total} generations"
        raise invalid(f"{message}; at most {options.max_sequences} are allowed in one call", "n")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream to be true", "stream_options")
    if body.timeout is not None and not 0 < body.timeout <= MAX_TIMEOUT_S:
        raise invalid(
            f"timeout is {body.timeout}; it must be above 0 and at most {MAX_TIMEOUT_S:.0f} seconds", "timeout"
        )
    for name in ("cache_salt", "user"):
        _at_most(name, len(getattr(body, name) or ""), MAX_NAME_CHARS, "characters")
    return CallSpec(
        sampling=_sampling(body, options, max_model_len, settings),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        continuous_usage=bool(body.stream_options and body.stream_options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        deadline_s=body.deadline_s,
        slo=body.slo or "",
        user=body.user or "",
        timeout_s=body.timeout,
        model=body.model or None,
        **fields,
    )


_SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "seed",
)


def _sampling(
    body: GenerationBody, options: ServerOptions, max_model_len: int, settings: dict[str, Any]
) -> SamplingParams:
    for name in _SAME_NAME:
        value = getattr(body, name)
        if value is not None:
            settings[name] = value
    if body.top_k is not None:
        settings["top_k"] = 0 if body.top_k == -1 else body.top_k
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    _at_most("stop", len(stop), options.max_stop, "strings")
    for text in stop:
        _at_most("stop", len(text), options.max_stop_chars, "characters in one string")
    bad_words = tuple(body.bad_words or ())
    _at_most("bad_words", len(bad_words), options.max_bad_words, "words")
    for word in bad_words:
        _at_most("bad_words", len(word), options.max_stop_chars, "characters in one word")
    stop_token_ids = tuple(body.stop_token_ids or ())
    _at_most("stop_token_ids", len(stop_token_ids), options.max_stop, "ids")
    try:
        sampling = SamplingParams(
            stop=stop,
            stop_token_ids=stop_token_ids,
            bad_words=bad_words,
            logit_bias=_logit_bias(body, options),
            **settings,
        )
    except ConfigError as error:
        raise bad_option(error) from error
    if sampling.max_tokens is not None:
        # More than fits is the same as all that fits, and keeps numbers small.
        longest = max(min(sampling.max_tokens, max_model_len), sampling.min_tokens)
        sampling = replace(sampling, max_tokens=longest)
    return sampling


def _logit_bias(body: GenerationBody, options: ServerOptions) -> dict[int, float]:
    given = body.logit_bias or {}
    _at_most("logit_bias", len(given), options.max_logit_bias, "entries")
    bias = {}
    for key, value in given.items():
        if not key.isascii() or not key.isdecimal() or len(key) > MAX_ID_DIGITS:
            raise invalid(f"logit_bias has the key {key[:32]!r}; keys are token ids", "logit_bias")
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise invalid(f"logit_bias has the value {value}; values go from {-MAX_BIAS} to {MAX_BIAS}", "logit_bias")
        bias[int(key)] = value
    return bias


def _num_logprobs(name: str, wanted: int | None, options: ServerOptions) -> int | None:
    if wanted is None:
        return None
    if wanted < 0:
        raise invalid(f"{name} is {wanted}; it must be at least 0", name)
    _at_most(name, wanted, options.max_logprobs, "alternatives")
    return wanted


def _count(name: str, value: int | None, largest: int) -> int:
    if value is None:
        return 1
    if value < 1:
        raise invalid(f"{name} is {value}; it must be at least 1", name)
    _at_most(name, value, largest, "choices")
    return value


def _at_most(name: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise ApiError(
            400, f"{name} has {count} {what}; at most {limit} are allowed", code="limit_exceeded", param=name
        )
