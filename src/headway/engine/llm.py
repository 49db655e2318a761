"""Generation without a server: prompts in, outputs out, in the order of the prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, Literal

from headway.config import ConfigError, SamplingParams
from headway.core.request import RequestRefused
from headway.engine.engine import Engine, Prepared, Prompt
from headway.engine.outputs import REFUSED, CompletionOutput, RequestError, RequestOutput, RequestUpdate
from headway.engine.progress import GenerationProgress

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


@dataclass
class _Call:
    """The requests of one call. Each call has its own, so calls may overlap.

    Attributes:
        prepared: not yet in the engine, by index.
        refused: final outputs of the refused ones, by index.
        index_of: request id -> index, for those that have not ended.
        updates: arrived and not yet taken.
    """

    prepared: dict[int, Prepared] = field(default_factory=dict)
    refused: dict[int, RequestOutput] = field(default_factory=dict)
    index_of: dict[str, int] = field(default_factory=dict)
    updates: deque[RequestUpdate] = field(default_factory=deque)


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

    Args:
        engine: used by nobody else.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._calls: dict[str, _Call] = {}
        """request id -> the call that waits for it."""
        self._num_requests = 0

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
        use_progress: bool = False,
        errors: OnRefusal = "raise",
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Args:
            conversations: messages with "role" and "content", or lists of them.
            tools: JSON schemas of functions the model may call, for chat templates that know them.

        The other arguments, the result and the errors are those of :meth:`generate`.
        """
        listed = [conversations] if conversations and isinstance(conversations[0], Mapping) else conversations
        settings = _Wishes(sampling_params, priority, cache_salt, tenant, deadline_s, slo).by_prompt(len(listed))

        def prepare(index: int, request_id: str) -> Prepared:
            messages: Any = listed[index]
            return self.engine.prepare_chat(messages, request_id=request_id, tools=tools, **settings[index])

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
    ) -> Iterator[tuple[int, RequestUpdate]]:
        """Complete all prompts and hand out what is new as soon as it is there.

        The arguments and errors are those of :meth:`generate`; refusals are raised by this call, not while iterating.
        Requests enter the engine when the iteration begins. If it is left early, they are aborted.

        Returns:
            Pairs of a prompt's index and its update; the last one of each prompt has the whole output.
        """
        wishes = _Wishes(sampling_params, priority, cache_salt, tenant, deadline_s, slo)
        return self._run(self._prepare_prompts(prompts, wishes, errors))

    def close(self) -> None:
        """Take no more prompts and close the trace; memory goes with the object. More calls do nothing."""
        self.engine.close()

    def __enter__(self) -> OfflineLLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- preparing a call ----------------------------------------------------------------------------------

    def _prepare_prompts(self, prompts: Prompt | Sequence[Prompt], wishes: _Wishes, errors: OnRefusal) -> _Call:
        listed = list_prompts(prompts)
        settings = wishes.by_prompt(len(listed))

        def prepare(index: int, request_id: str) -> Prepared:
            return self.engine.prepare(listed[index], request_id=request_id, **settings[index])

        return self._prepare(len(listed), prepare, errors)

    def _prepare(self, count: int, prepare: Callable[[int, str], Prepared], errors: OnRefusal) -> _Call:
        """Check all prompts before any is run."""
        if errors not in ("raise", "return"):
            raise ConfigError("errors", errors, "must be 'raise' or 'return'")
        call = _Call()
        for index in range(count):
            self._num_requests += 1
            request_id = f"llm-{self._num_requests}"
            try:
                call.prepared[index] = prepare(index, request_id)
            except RequestRefused as refusal:
                if errors == "raise":
                    raise PromptRefused(index, refusal) from refusal
                call.refused[index] = refused_output(request_id, refusal)
        return call

    # --- running it ----------------------------------------------------------------------------------------

    def _outputs(self, call: _Call, use_progress: bool) -> list[RequestOutput]:
        """The final outputs, in order."""
        outputs: dict[int, RequestOutput] = {}
        count = len(call.prepared) + len(call.refused)
        with GenerationProgress(self.engine.scheduler, count) if use_progress else nullcontext() as progress:
            for index, update in self._run(call):
                if progress is not None:
                    progress.update(update)
                if update.output is not None:
                    outputs[index] = update.output
        return [outputs[index] for index in range(count)]

    def _run(self, call: _Call) -> Iterator[tuple[int, RequestUpdate]]:
        """Enter the requests and move the engine until all of them have ended."""
        for index, output in call.refused.items():
            yield index, RequestUpdate(output.request_id, "", (), None, output)
        try:
            for index, prepared in call.prepared.items():
                self.engine.add(prepared)
                request_id = prepared.request.request_id
                call.index_of[request_id] = index
                self._calls[request_id] = call
            while call.index_of or call.updates:
                if not call.updates:
                    self._step()
                    continue
                update = call.updates.popleft()
                index = call.index_of[update.request_id]
                if update.output is not None:
                    del call.index_of[update.request_id]
                yield index, update
        finally:
            for request_id in call.index_of:
                self._calls.pop(request_id, None)
                self.engine.abort(request_id)

    def _step(self) -> None:
        """One step of the engine; every update goes to the call that waits for it."""
        for update in self.engine.step():
            call = self._calls.get(update.request_id)
            if call is not None:
                call.updates.append(update)
                if update.output is not None:
                    del self._calls[update.request_id]


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
