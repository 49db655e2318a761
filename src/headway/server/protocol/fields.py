"""Every field of the API's requests, and what becomes of it: OpenAI's, and those that users of other servers send.

This table decides what bodies may hold (``protocol.base``), it is the list in docs/server.md (``make docs``), and the
tests walk it beside the request types of the official client. A field is one of

* used: there is a field of that name in the body's model, and it has an effect;
* used as another one: another server's name for it;
* taken: it cannot matter here, so it has no effect, which the log says once;
* refused: it would change the answer in a way that is not supported, which a sentence says. Values that ask for
  nothing, ``null`` among them, are taken.

What is in no row is refused as unknown, with the nearest name.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

logger = logging.getLogger(__name__)

OPENAI, HEADWAY, VLLM, SGLANG, LLAMA_CPP = "OpenAI", "Headway", "vLLM", "SGLang", "llama.cpp"
ANTHROPIC, OPENROUTER = "Anthropic", "OpenRouter"


class Use(StrEnum):
    """What becomes of a field."""

    USED = "used"
    ALIAS = "alias"
    TAKEN = "taken without effect"
    REFUSED = "refused"


@dataclass(frozen=True)
class Field:
    """One field of a request's object.

    Attributes:
        name: as clients write it.
        use: what becomes of it.
        text: what it means, why it has no effect, or the sentence that refuses it.
        source: whose API has it.
        target: of an alias, the field that it is read as.
        neutral: values of a refused field that ask for nothing, besides ``null``.
        inside: the object that stands in a used field, a key of :data:`OBJECTS`.
        only: values of a used field that are supported; empty if its type says it.
        otherwise: the sentence for any other value, with ``{value}`` in it.
    """

    name: str
    use: Use
    text: str
    source: str = OPENAI
    target: str = ""
    neutral: tuple[Any, ...] = ()
    inside: str = ""
    only: tuple[str, ...] = ()
    otherwise: str = ""


def _used(name: str, text: str, source: str = OPENAI, **more: Any) -> Field:
    return Field(name, Use.USED, text, source, **more)


def _alias(name: str, target: str, source: str) -> Field:
    return Field(name, Use.ALIAS, f"the same as `{target}`", source, target=target)


def _taken(names: str, text: str, source: str = OPENAI) -> list[Field]:
    return [Field(name, Use.TAKEN, text, source) for name in names.split()]


def _refused(names: str, text: str, source: str = OPENAI, neutral: tuple[Any, ...] = ()) -> list[Field]:
    return [Field(name, Use.REFUSED, text, source, neutral=neutral) for name in names.split()]


_FORM = "the output's form (structured-output.md)"
_VARIABLE = "given to the chat template, if that knows it"
_CACHE_MARK = "prefixes are cached by themselves"
_OFF: tuple[Any, ...] = (False, 0, "", [], {})
"""Values that switch a thing off or leave it out."""

_GENERATION: list[Field] = [
    _used("model", "one of the served names; none or empty is the first"),
    _used("max_tokens", "most tokens to generate; more than fits means all that fits"),
    _used("n", "choices per prompt; with a `seed`, choice *i* draws from `seed + i`"),
    _used("stop", "a string or a list; nothing of a stop string is ever sent"),
    _used("seed", "the same seed and parameters give the same tokens"),
    _used("stream", "server-sent events"),
    _used("stream_options", "how to stream", inside="stream_options"),
    _used("temperature", "0 takes the likeliest token"),
    _used("top_p", "draw among the likeliest tokens with this total probability"),
    _used("presence_penalty", "-2 to 2, for tokens that occurred"),
    _used("frequency_penalty", "-2 to 2, per occurrence"),
    _used("logit_bias", "token ids to numbers from -100 to 100"),
    _used("response_format", _FORM, inside="response_format"),
    _used("user", "who asks, for the `fair` policy, unless API keys say so"),
    *_taken("metadata store", "nothing is stored"),
    *_taken("service_tier", "all calls are served alike; see `priority`"),
    *_taken("safety_identifier", "nobody is judged by it"),
    *_taken("prompt_cache_key prompt_cache_retention prompt_cache_options", _CACHE_MARK),
    _used("top_k", "draw among so many tokens; 0 or -1 means all", f"{VLLM}, {SGLANG}, {LLAMA_CPP}"),
    _used("min_p", "least probability, relative to the likeliest token", f"{VLLM}, {SGLANG}, {LLAMA_CPP}"),
    _used("repetition_penalty", "1 is none", f"{VLLM}, {SGLANG}"),
    _alias("repeat_penalty", "repetition_penalty", LLAMA_CPP),
    _used("min_tokens", "no end before so many tokens", f"{VLLM}, {SGLANG}"),
    _used("stop_token_ids", "token ids that end the output", f"{VLLM}, {SGLANG}"),
    _used("bad_words", "a list of words that must not come, with a space in front or without", VLLM),
    _used("ignore_eos", "go on after the end of the text", f"{VLLM}, {SGLANG}, {LLAMA_CPP}"),
    _used("include_stop_str_in_output", "keep the stop string", VLLM),
    _alias("no_stop_trim", "include_stop_str_in_output", SGLANG),
    _used("skip_special_tokens", "false shows special tokens as text", f"{VLLM}, {SGLANG}"),
    _used("return_token_ids", "`token_ids` in every choice, and in every chunk those of its text", VLLM),
    _used("priority", "for the `priority` policy; smaller is more urgent", f"{VLLM}, {SGLANG}"),
    _used("cache_salt", "cached prefixes are shared within one salt only", f"{VLLM}, {SGLANG}"),
    _used("deadline_s", "for the `deadline` policy: seconds until it should have ended", HEADWAY),
    _used("slo", "for the `deadline` policy: a named objective", HEADWAY),
    _used("timeout", "504 if none of its prompts has begun to run after so many seconds", HEADWAY),
    _used("structured_outputs", _FORM, VLLM, inside="structured_outputs"),
    _used("guided_json", _FORM, VLLM),
    _used("guided_regex", _FORM, VLLM),
    _used("guided_choice", _FORM, VLLM),
    _used("guided_grammar", _FORM, VLLM),
    _alias("regex", "guided_regex", SGLANG),
    _alias("ebnf", "guided_grammar", SGLANG),
    _alias("json_schema", "guided_json", f"{SGLANG}, {LLAMA_CPP}"),
    _alias("grammar", "guided_grammar", LLAMA_CPP),
    *_taken("guided_decoding_backend", "there is one backend", VLLM),
    *_refused(
        "guided_whitespace_pattern", "white space in JSON has one pattern here (docs/structured-output.md)", VLLM, ("",)
    ),
    *_refused("use_beam_search", "beam search is not supported; best_of of /v1/completions is", VLLM, (False,)),
    *_refused("length_penalty", "length_penalty belongs to beam search, which is not supported", VLLM, (1, 0)),
    *_refused("allowed_token_ids", "allowed_token_ids is not supported; bad_words and guided_regex are", VLLM, _OFF),
    *_refused("truncate_prompt_tokens", "prompts are never cut here; send a shorter one", VLLM, (-1,)),
    *_taken("truncation_side", "prompts are never cut", VLLM),
    *_refused("spaces_between_special_tokens", "spaces_between_special_tokens can only be true", VLLM, (True,)),
    *_refused("logprob_token_ids", "log probabilities of chosen ids are not supported", VLLM, _OFF),
    *_refused("return_tokens_as_token_ids", "it is not supported; return_token_ids is", VLLM, _OFF),
    *_refused("return_prompt_text", "the prompt's text is not returned; /tokenize returns its tokens", VLLM, _OFF),
    *_refused("kv_transfer_params ec_transfer_params", "KV cache is not moved between servers", VLLM, _OFF),
    *_refused("vllm_xargs logits_processors", "custom logits processors are not supported", VLLM, _OFF),
    *_refused("repetition_detection", "repetition_detection is not supported; repetition_penalty is", VLLM, _OFF),
    *_refused("watermarking", "watermarking is not supported", VLLM, _OFF),
    *_taken("stream_interval", "chunks are sent as they come", VLLM),
    *_taken("request_id", "a call is named by the header X-Request-Id", VLLM),
    *_taken("rid", "a call is named by the header X-Request-Id", SGLANG),
    *_taken("session_id", "calls of a session share what prefixes they share", f"{VLLM}, {SGLANG}"),
    *_taken("routed_experts_prompt_start return_token_offsets return_mm_kwargs", "has no meaning here", VLLM),
    *_taken("extra_key custom_labels custom_params", "nothing is counted or cached by it", SGLANG),
    *_taken("routed_dp_rank disagg_prefill_dp_rank data_parallel_rank ngram_corpus_id", "there is one engine", SGLANG),
    *_taken("return_cached_tokens_details routed_experts_start_len log_metrics", "usage has what is known", SGLANG),
    *_refused("stop_regex", "stop_regex is not supported; stop is", SGLANG, _OFF),
    *_refused("custom_logit_processor", "custom logits processors are not supported", SGLANG, _OFF),
    *_refused("return_hidden_states return_routed_experts", "only tokens and text are returned", SGLANG, _OFF),
    *_refused("session_params", "a session's KV cache cannot be edited; send the whole prompt", SGLANG, _OFF),
    *_refused("lora_path", "adapters are not supported", SGLANG, _OFF),
    *_refused("bootstrap_host bootstrap_port bootstrap_room", "KV cache is not moved between servers", SGLANG, _OFF),
    *_taken("cache_prompt id_slot slot_id n_keep n_discard n_indent", "the scheduler decides it", LLAMA_CPP),
    *_taken("timings_per_token return_progress response_fields", "answers have one shape", LLAMA_CPP),
    *_taken("post_sampling_probs return_tokens min_keep samplers backend_sampling", "there is one sampler", LLAMA_CPP),
    *_refused("lora", "adapters are not supported", LLAMA_CPP, _OFF),
    *_refused("mirostat", "mirostat is not supported; top_p and min_p are", LLAMA_CPP, _OFF),
    *_taken("mirostat_tau mirostat_eta", "mirostat is off", LLAMA_CPP),
    *_refused("typical_p", "typical sampling is not supported; min_p is", LLAMA_CPP, (1, 1.0)),
    *_refused("top_n_sigma", "top_n_sigma is not supported; min_p is", LLAMA_CPP, (-1, 0)),
    *_refused("xtc_probability", "XTC is not supported", LLAMA_CPP, _OFF),
    *_taken("xtc_threshold", "XTC is off", LLAMA_CPP),
    *_refused("dynatemp_range", "dynamic temperature is not supported", LLAMA_CPP, _OFF),
    *_taken("dynatemp_exponent", "dynamic temperature is off", LLAMA_CPP),
    *_refused("dry_multiplier", "DRY is not supported; repetition_penalty is", LLAMA_CPP, _OFF),
    *_taken("dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers", "DRY is off", LLAMA_CPP),
    *_refused("repeat_last_n", "the repetition penalty looks at the whole text", LLAMA_CPP, (-1,)),
    *_refused("t_max_predict_ms", "a time limit for generation is not supported; timeout limits the wait", LLAMA_CPP),
    *_refused("top_a", "top_a is not supported; min_p is", OPENROUTER, _OFF),
    *_taken("provider models route transforms plugins usage", "there is one model and no router", OPENROUTER),
]

_COMPLETION: list[Field] = [
    _used("prompt", "a text, a list of texts, token ids, or a list of lists of token ids"),
    _used("best_of", "generates so many and keeps the `n` with the highest mean log probability; not with `stream`"),
    _used("echo", "choices begin with their prompt; with `max_tokens` 0 they are the prompt alone"),
    _used("logprobs", "alternatives per token; with `echo` also of the prompt, then not with `stream`"),
    *_refused("suffix", "nothing can be inserted before a suffix: this model continues texts", neutral=("",)),
    *_refused("prompt_embeds", "prompts are text or token ids", VLLM, _OFF),
    *_refused("prompt_logprobs", "prompt_logprobs is not supported; echo with logprobs is", VLLM, (False,)),
    *_refused("add_special_tokens", "add_special_tokens can only be true; send token ids instead", VLLM, (True,)),
    _alias("n_predict", "max_tokens", LLAMA_CPP),
    _alias("n_probs", "logprobs", LLAMA_CPP),
    *_refused("image_data multimodal_data", "this model reads text only", LLAMA_CPP, _OFF),
]

_CHAT: list[Field] = [
    _used("messages", "the conversation", inside="message"),
    _used("max_completion_tokens", "the newer name of `max_tokens`; up to the context's end by default"),
    _used("logprobs", "whether to show log probabilities"),
    _used("top_logprobs", "alternatives per token"),
    _used("tools", "functions that may be called", inside="tool"),
    _used("tool_choice", "whether they may or must be", inside="tool_choice"),
    _used("parallel_tool_calls", "false allows one call where calls are forced"),
    _used("reasoning_effort", _VARIABLE + '; so is `enable_thinking`, which "none" turns off'),
    _used("verbosity", _VARIABLE),
    _used(
        "add_generation_prompt", "false ends the prompt behind the last message, so that any role may speak next", VLLM
    ),
    _used("continue_final_message", "the answer goes on with the text of the last message", VLLM),
    _used("chat_template_kwargs", "variables of the chat template", f"{VLLM}, {SGLANG}, {LLAMA_CPP}"),
    _used("enable_thinking", _VARIABLE, "Qwen"),
    _used("thinking", _VARIABLE + ", as `enable_thinking`", f"{ANTHROPIC}, DeepSeek", inside="thinking"),
    _used("functions", "the older form of `tools`; a call is answered in the older form", inside="function"),
    _used("function_call", "the older form of `tool_choice`", inside="function_name"),
    *_taken("prediction", "every token is computed anyway"),
    *_taken("web_search_options", "nothing is looked up"),
    *_taken("moderation", "nothing is moderated here; put a filter in front"),
    *_refused("modalities", "only text is generated", neutral=(["text"], [])),
    *_taken("audio", "only text is generated"),
    *_taken("cache_control", _CACHE_MARK, ANTHROPIC),
    *_refused("chat_template", "a template comes with the model, not with a call", VLLM, ("",)),
    *_refused("add_special_tokens", "the chat template writes all special tokens", VLLM, (False,)),
    *_refused("echo", "only completions can repeat their prompt", VLLM, (False,)),
    *_refused("documents", "documents are not supported; put them into a message", VLLM, _OFF),
    *_refused("prompt_logprobs", "log probabilities of a chat's prompt are not supported", VLLM, (False,)),
    *_refused("thinking_token_budget", "thinking has no budget of its own; max_tokens counts all", VLLM, (-1,)),
    *_taken("media_io_kwargs mm_processor_kwargs", "this model reads text only", VLLM),
    _used("include_reasoning", "false leaves the reasoning out of the answer", f"{VLLM}, {OPENROUTER}"),
    *_taken("separate_reasoning stream_reasoning", "reasoning is told apart if the model marks it", SGLANG),
    *_taken("max_dynamic_patch min_dynamic_patch use_audio_in_video", "this model reads text only", SGLANG),
    *_taken("reasoning_format thinking_forced_open", "reasoning is told apart if the model marks it", LLAMA_CPP),
    *_taken("parse_tool_calls", "calls are told apart if there are tools", LLAMA_CPP),
    _alias("n_predict", "max_tokens", LLAMA_CPP),
]

_THINKING: list[Field] = [
    _used("type", '"disabled" turns it off'),
    *_taken("budget_tokens display", "`max_tokens` counts all tokens", ANTHROPIC),
]

_STREAM_OPTIONS: list[Field] = [
    _used("include_usage", "a last chunk with the usage"),
    _used("continuous_usage_stats", "the usage so far in every chunk", f"{VLLM}, {SGLANG}"),
    *_taken("include_obfuscation", "chunks are not padded"),
]

_RESPONSE_FORMAT: list[Field] = [
    _used("schema", "the schema, in place of `json_schema`", LLAMA_CPP),
    _used(
        "type",
        '"text", "json_object", "json_schema" or, not OpenAI\'s, "regex"',
        only=("text", "json_object", "json_schema", "regex"),
        otherwise="a response_format of type {value} is not supported; use text, json_object, json_schema or regex",
    ),
    _used("json_schema", "the schema", inside="json_schema"),
    _used("regex", "the regular expression", HEADWAY),
]

_JSON_SCHEMA: list[Field] = [
    _used("schema", "the schema itself"),
    _used("name", "a label; the model is not shown it"),
    _used("description", "the model is not shown it"),
    _used("strict", "every schema is kept to"),
]

_STRUCTURED_OUTPUTS: list[Field] = [
    _used("json", "a JSON schema, as an object or as text", VLLM),
    _used("json_object", "true", VLLM),
    _used("regex", "a regular expression", VLLM),
    _used("choice", "a list of texts", VLLM),
    _used("grammar", "Lark or GBNF", VLLM),
    *_taken("disable_fallback", "there is one backend", VLLM),
    *_refused("disable_any_whitespace whitespace_pattern", "white space in JSON has one pattern here", VLLM, _OFF),
    *_refused("disable_additional_properties", "write additionalProperties: false into the schema", VLLM, (False,)),
    *_refused("structural_tag", "structural tags are not supported; a grammar is", VLLM, _OFF),
]

_MESSAGE: list[Field] = [
    _used("role", "system, developer, user, assistant, tool or function, or one that the chat template names"),
    _used("content", "a text, or a list of parts", inside="part"),
    _used("name", "for templates that show it"),
    _used("tool_calls", "of an assistant's message: the calls that it made", inside="tool_call"),
    _used("tool_call_id", "of a tool's message: the call that it answers"),
    _used("refusal", "of an assistant's message: shown in place of its content"),
    _used("reasoning_content", "of an assistant's message: for templates that show it", f"{VLLM}, {SGLANG}"),
    _used("reasoning", "the same; they may come together", VLLM),
    _used("function_call", "of an assistant's message: the older form of one call", inside="called_function"),
    *_taken("audio annotations", "not shown to the model"),
    *_taken("cache_control", _CACHE_MARK, ANTHROPIC),
]
"""Any other field of a message, or of a call in it, is passed over: clients send back what they got."""

_TOOL_CALL: list[Field] = [
    _used("id", "its name, which the tool's message repeats"),
    _used(
        "type",
        '"function"',
        only=("function",),
        otherwise="calls of type {value} cannot be shown to the model; only those of functions",
    ),
    _used("function", "what was called", inside="called_function"),
]
_CALLED_FUNCTION: list[Field] = [
    _used("name", "its name"),
    _used("arguments", "JSON, as text; an object that was cut, or text that is no object, is taken as well"),
]

_PART: list[Field] = [
    _used(
        "type",
        '"text", or in an assistant\'s message "refusal"',
        only=("text", "refusal"),
        otherwise="this model reads text only: a part of type {value} cannot be used",
    ),
    _used("text", "the text"),
    _used("refusal", "the text of a refusal"),
    *_taken("cache_control", _CACHE_MARK, ANTHROPIC),
    *_taken("prompt_cache_breakpoint", _CACHE_MARK),
    *_refused("image_url input_audio file video_url audio_url", "this model reads text only"),
    *_taken("annotations logprobs", "not shown to the model"),
]

_TOOL: list[Field] = [
    _used(
        "type",
        '"function"',
        only=("function",),
        otherwise="tools of type {value} are not supported; describe it as a function",
    ),
    _used("function", "the function", inside="function"),
    *_taken("cache_control", _CACHE_MARK, ANTHROPIC),
    *_taken("defer_loading", "all tools are shown", f"{ANTHROPIC}, {VLLM}"),
]

_FUNCTION: list[Field] = [
    _used("name", "1 to 64 letters, digits or `_.-`"),
    _used("description", "for the model"),
    _used("parameters", "JSON schema of the arguments"),
    _used("strict", "the schema is kept to whenever the call is forced"),
    *_taken("cache_control", _CACHE_MARK, ANTHROPIC),
    *_taken("defer_loading", "all tools are shown", f"{ANTHROPIC}, {VLLM}"),
]

_TOOL_CHOICE: list[Field] = [
    _used(
        "type",
        '"function" or "allowed_tools"; the words "none", "auto" and "required" stand alone',
        only=("function", "allowed_tools"),
        otherwise="a tool_choice of type {value} is not supported; name a function",
    ),
    _used("function", "the function to call", inside="function_name"),
    _used("allowed_tools", "those tools that the model is shown and may call", inside="allowed_tools"),
]

_ALLOWED_TOOLS: list[Field] = [
    _used("mode", '"auto" or "required"'),
    _used("tools", "some of `tools`, by name"),
]

_FUNCTION_NAME: list[Field] = [_used("name", "its name")]

OBJECTS: Mapping[str, list[Field]] = {
    "generation": _GENERATION,
    "completion": _COMPLETION,
    "chat": _CHAT,
    "thinking": _THINKING,
    "stream_options": _STREAM_OPTIONS,
    "response_format": _RESPONSE_FORMAT,
    "json_schema": _JSON_SCHEMA,
    "structured_outputs": _STRUCTURED_OUTPUTS,
    "message": _MESSAGE,
    "tool_call": _TOOL_CALL,
    "called_function": _CALLED_FUNCTION,
    "part": _PART,
    "tool": _TOOL,
    "function": _FUNCTION,
    "tool_choice": _TOOL_CHOICE,
    "allowed_tools": _ALLOWED_TOOLS,
    "function_name": _FUNCTION_NAME,
}
"""The objects of requests, by name, with their fields."""

_BY_NAME = {kind: {field.name: field for field in fields} for kind, fields in OBJECTS.items()}


def fields_of(kinds: Iterable[str]) -> dict[str, Field]:
    """The fields of an object that is made of these parts, by name."""
    return {name: field for kind in kinds for name, field in _BY_NAME[kind].items()}


def asks_for_nothing(field: Field, value: Any) -> bool:
    """Whether a refused field holds a value that may be taken."""
    return value is None or any(
        isinstance(value, bool) is isinstance(each, bool) and value == each for each in field.neutral
    )


@functools.cache
def note_taken(name: str, why: str) -> None:
    """Say in the log, once, that a field has no effect."""
    logger.warning("the field %s is taken without effect: %s", name, why)
