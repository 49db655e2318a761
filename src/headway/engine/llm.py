"""Generation without a server: prompts in, outputs out, in the order of the prompts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Literal

from headway.config import ConfigError, SamplingParams
from headway.core.request import RequestRefused
from headway.engine.engine import Engine, Prepared, Prompt
from headway.engine.outputs import REFUSED, CompletionOutput, RequestError, RequestOutput, RequestUpdate
from headway.engine.progress import GenerationProgress
from headway.engine.turns import Call, CallStream, Turns

OnRefusal = Literal["raise", "return"]
Conversation = Sequence[Mapping[str, Any]]


class PromptRefused(RequestRefused):
    """One prompt of a call can never be served; nothing of the call was run.

    Attributes:
        index: which prompt, from 0.
    """

    def __init__(self, index: int, refusal: RequestRefused) -> None:
        super().__init__(refusal.field, refusal.value, refusal.limit, f"prompt {index}: {refusal}")
        self.index = index


@dataclass(frozen=True)
class _Wishes:
    """What a call wants besides its prompts: each one for all, or one per prompt."""

    sampling_params: SamplingParams | Sequence[SamplingParams] | None
    priority: int | Sequence[int]
    cache_salt: str | Sequence[str]
    tenant: str | Sequence[str]
    deadline_s: float | Sequence[float | None] | None
    slo: str | Sequence[str]

    def by_prompt(self, count: int) -> list[dict[str, Any]]:
        """Arguments of :meth:`Engine.prepare`, one dictionary per prompt."""
        columns = {spec.name: per_prompt(spec.name, getattr(self, spec.name), count) for spec in fields(self)}
        columns["sampling"] = columns.pop("sampling_params")
        return [{name: values[index] for name, values in columns.items()} for index in range(count)]


class OfflineLLM:
    """Runs prompts on an engine in the caller's thread: the engine moves while a call waits for its outputs.

    Calls may come from several threads. They take turns step by step, and every step moves the requests of all of them,
    so each call gets the outputs that it would get alone.

    Args:
        engine: used by nobody else.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._turns = Turns(engine)
        self._numbers = itertools.count(1)
        self._preparing = threading.Lock()
        """Tokenizers are not made for several threads at a time."""

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What holds where ``sampling_params`` is ``None``: the model's defaults, and Headway's for the rest.

        ``dataclasses.replace`` changes some of it.
        """
        return self.engine.default_sampling_params

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | Sequence[str] = "",
        tenant: str | Sequence[str] = "",
        deadline_s: float | Sequence[float | None] | None = None,
        slo: str | Sequence[str] = "",
        use_progress: bool = False,
        errors: OnRefusal = "raise",
    ) -> list[RequestOutput]:
        """Complete all prompts.

        Args:
            prompts: one prompt or several, each text or token ids. A list of numbers is one prompt.
            sampling_params: one for all, or one per prompt; ``None`` is ``default_sampling_params``.
            priority: smaller is more urgent, under the priority policy; one for all, or one per prompt.
            cache_salt: prefixes are shared within one salt only; one for all, or one per prompt.
            tenant: who asks, for the fair policy; one for all, or one per prompt.
            deadline_s: seconds by which prompts should be served, for the deadline policy; likewise.
            slo: a class of deadlines instead ("interactive", "standard", "batch"); likewise.
            use_progress: show a progress bar.
            errors: what to do about prompts that can never be served: "raise", before anything runs, or "return"
                an output with finish reason "refused" in their place.

        Returns:
            One output per prompt, in their order.

        Raises:
            PromptRefused: see ``errors``.
            ConfigError: lists of unequal length.
        """
        wishes = _Wishes(sampling_params, priority, cache_salt, tenant, deadline_s, slo)
        return self._outputs(self._prepare_prompts(prompts, wishes, errors), use_progress)

    def chat(
        self,
        conversations: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        priority: int | Sequence[int] = 0,
        cache_salt: str | Sequence[str] = "",
        tenant: str | Sequence[str] = "",
        deadline_s: float | Sequence[float | None] | None = None,
        slo: str | Sequence[str] = "",
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        use_progress: bool = False,
        errors: OnRefusal = "raise",
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Args:
            conversations: messages with "role" and "content", or lists of them.
            tools: JSON schemas of functions the model may call, for chat templates that know them.
            add_generation_prompt: open the assistant's turn behind the last message; ``None`` is yes, unless that is
                continued.
            continue_final_message: go on with the text of the last message instead.

        The other arguments, the result and the errors are those of :meth:`generate`; both of the last two are a
        :class:`ConfigError` as well.
        """
        if continue_final_message and add_generation_prompt:
            raise ConfigError("continue_final_message", True, "cannot go with add_generation_prompt")
        listed = [conversations] if conversations and isinstance(conversations[0], Mapping) else conversations
        settings = _Wishes(sampling_params, priority, cache_salt, tenant, deadline_s, slo).by_prompt(len(listed))

        if continue_final_message:
            ending: dict[str, Any] = {"continue_final_message": True}
        else:
            ending = {"add_generation_prompt": False} if add_generation_prompt is False else {}

        def prepare(index: int, request_id: str) -> Prepared:
            messages: Any = listed[index]
            return self.engine.prepare_chat(
                messages, request_id=request_id, tools=tools, ending=ending, **settings[index]
            )

        return self._outputs(self._prepare(len(listed), prepare, errors), use_progress)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | Sequence[str] = "",
        tenant: str | Sequence[str] = "",
        deadline_s: float | Sequence[float | None] | None = None,
        slo: str | Sequence[str] = "",
        errors: OnRefusal = "raise",
    ) -> CallStream:
        """Complete all prompts and hand out what is new as soon as it is there.

        The arguments and errors are those of :meth:`generate`; refusals are raised by this call, not while iterating.
        Requests enter the engine when the iteration begins. If it is left early or closed, they are aborted. While
        nobody iterates, the engine moves only if another call waits for something; updates are kept until read.

        Returns:
            An iterator, which another thread may close, of pairs of a prompt's index and its update; the last one of
            each prompt has the whole output.
        """
        wishes = _Wishes(sampling_params, priority, cache_salt, tenant, deadline_s, slo)
        return CallStream(self._turns, self._prepare_prompts(prompts, wishes, errors))

    def close(self) -> None:
        """Take no more prompts and close the trace; memory goes with the object. More calls do nothing.

        Calls in progress in other threads get a ``RuntimeError``.
        """
        self._turns.close()

    def __enter__(self) -> OfflineLLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- preparing a call ----------------------------------------------------------------------------------

    def _prepare_prompts(self, prompts: Prompt | Sequence[Prompt], wishes: _Wishes, errors: OnRefusal) -> Call:
        listed = list_prompts(prompts)
        settings = wishes.by_prompt(len(listed))

        def prepare(index: int, request_id: str) -> Prepared:
            return self.engine.prepare(listed[index], request_id=request_id, **settings[index])

        return self._prepare(len(listed), prepare, errors)

    def _prepare(self, count: int, prepare: Callable[[int, str], Prepared], errors: OnRefusal) -> Call:
        """Check all prompts before any is run."""
        if errors not in ("raise", "return"):
            raise ConfigError("errors", errors, "must be 'raise' or 'return'")
        call = Call()
        for index in range(count):
            request_id = f"llm-{next(self._numbers)}"
            try:
                with self._preparing:
                    call.prepared[index] = prepare(index, request_id)
            except RequestRefused as refusal:
                if errors == "raise":
                    raise PromptRefused(index, refusal) from refusal
                output = refused_output(request_id, refusal)
                call.updates.append((index, RequestUpdate(request_id, "", (), None, output)))
        return call

    # --- running it ----------------------------------------------------------------------------------------

    def _outputs(self, call: Call, use_progress: bool) -> list[RequestOutput]:
        """The final outputs, in order."""
        outputs: dict[int, RequestOutput] = {}
        count = len(call.prepared) + len(call.updates)
        with (
            GenerationProgress(self.engine.scheduler, count) if use_progress else nullcontext() as progress,
            closing(CallStream(self._turns, call)) as stream,
        ):
            for index, update in stream:
                if progress is not None:
                    progress.update(update)
                if update.output is not None:
                    outputs[index] = update.output
        return [outputs[index] for index in range(count)]


def list_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, which is text or numbers, or several, as a list."""
    if isinstance(prompts, str):
        return [prompts]
    listed: list[Any] = list(prompts)
    return (
        [listed] if listed and not any(isinstance(item, str) or hasattr(item, "__len__") for item in listed) else listed
    )


def per_prompt(name: str, values: Any, count: int) -> list[Any]:
    """One value per prompt; :class:`ConfigError` if a list has not as many as there are prompts."""
    if values is None or isinstance(values, (int, float, str, SamplingParams)):
        return [values] * count
    if len(values) != count:
        raise ConfigError(name, len(values), f"must be one for all prompts or one per prompt ({count})")
    return list(values)


def refused_output(request_id: str, refusal: RequestRefused) -> RequestOutput:
    """The output of a request that never entered the engine."""
    completion = CompletionOutput("", (), REFUSED)
    return RequestOutput(request_id, None, (), (completion,), error=RequestError.of_refusal(refusal))
