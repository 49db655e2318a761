"""Puts an engine together: the only module that names concrete executors, models and tokenizers."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import headway
from headway.config import CacheConfig, ConfigError, EngineOptions, SchedulerConfig
from headway.config.combinations import check_fits, tight_limits, tokens_that_fit
from headway.config.files import writable_file
from headway.core.policies import make_policy
from headway.core.scheduler import Scheduler
from headway.engine.engine import Engine
from headway.engine.llm import OfflineLLM
from headway.engine.loop import Clock, EngineLoop
from headway.engine.metrics import MemoryUse
from headway.engine.processor import OutputProcessor
from headway.engine.trace import TraceHeader, TraceWriter
from headway.executor.available import available_bytes
from headway.executor.executor import ModelExecutor
from headway.executor.grammars import GuidanceGrammars
from headway.executor.memory import KVMemoryError, kv_block_bytes
from headway.models.config import ModelConfig
from headway.models.llama import DecoderModel
from headway.models.loading import (
    GenerationDefaults,
    ProgressCallback,
    Tokenizer,
    load_generation_defaults,
    load_tokenizer,
    load_weights,
    resolve_model,
)
from headway.models.loading.chat_template import check_asked_template
from headway.models.loading.generation import check_generation_config
from headway.models.ops.linear import check_weight_dtype
from headway.models.ops.registry import Ops, select_ops
from headway.models.registry import model_class

logger = logging.getLogger(__name__)

GIB = 2**30
CPU_MEMORY_SHARE, CPU_MEMORY_LIMIT = 0.4, 8 * GIB
"""Without a word about it, KV blocks take at most this share of the free memory, and at most so many bytes: two that
start at once see the same memory free, and neither knows of the other; what they leave is for their steps."""
GPU_MEMORY_SHARE = 0.85
UNKNOWN_MEMORY = GIB
"""What they take where the system does not tell how much is free."""


class LLM(OfflineLLM):
    """A model, ready to generate. The methods are those of :class:`~headway.engine.llm.OfflineLLM`.

    Args:
        model: a model's alias, folder, GGUF file or hub name.
        options: the other fields of :class:`~headway.config.EngineOptions`.

    Raises:
        ConfigError: an option that is unknown or cannot be used.
        LoadingError: the model cannot be had.
    """

    def __init__(self, model: str, **options: Any) -> None:
        known = [spec.name for spec in dataclasses.fields(EngineOptions)]
        for name, value in options.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                raise ConfigError(name, value, f"did you mean {close[0]}?" if close else "there is no such option")
        super().__init__(build_engine(EngineOptions(model=model, **options)))


MODEL_OPTIONS = ("model", "device", "kernels", "weight_dtype", "max_model_len", "chat_template", "generation_config")
"""Options that a loaded model depends on."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, and what belongs to it. Several engines may share one: nothing of it changes.

    Attributes:
        options: what it was loaded for.
        template_note: which chat template is used and what it can do, in words.
        defaults: sampling parameters that the model asks for.
    """

    options: EngineOptions
    name: str
    model: DecoderModel
    tokenizer: Tokenizer
    ops: Ops
    weight_dtype: str
    template_note: str
    defaults: GenerationDefaults


@dataclass(frozen=True)
class _Sizes:
    """What was decided about memory, with the reasons in words."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    why_blocks: str
    why_length: str


def build_engine(
    options: EngineOptions,
    *,
    clock: Clock = time.perf_counter,
    say: Callable[[str], None] = logger.info,
    progress: ProgressCallback | None = None,
    loaded: LoadedModel | None = None,
) -> Engine:
    """Load the model and put the engine around it.

    Args:
        options: what to build.
        clock: for metrics, and for times in the trace.
        say: called with one sentence for every limit that holds from now on; they are also in ``Engine.limits``.
        progress: called while the model is fetched.
        loaded: the model, if it is in memory already.

    Raises:
        ConfigError: an option that cannot be used with this model or on this machine, or is not that of ``loaded``.
        LoadingError: the model cannot be had.
    """
    check_options(options)
    if loaded is None:
        loaded = load_model(options, progress)
    for name in MODEL_OPTIONS:
        if getattr(options, name) != getattr(loaded.options, name):
            limit = f"must be {getattr(loaded.options, name)!r}, as when the model was loaded"
            raise ConfigError(name, getattr(options, name), limit)
    sizes = _size(options, loaded.model)
    config = loaded.model.config
    grammars = GuidanceGrammars(loaded.tokenizer, config.vocab_size, config.eos_token_ids)
    executor = _executor(options, sizes, loaded.model, grammars)
    scheduler = Scheduler(sizes.scheduler, sizes.cache)
    limits = (*_describe(loaded, sizes, executor, scheduler), *loaded.model.notes)
    for sentence in limits:
        say(sentence)
    trace = _open_trace(options, sizes, loaded)
    loop = EngineLoop(
        scheduler,
        executor,
        clock,
        processor=OutputProcessor(loaded.tokenizer),
        trace=trace,
        executor_times=lambda: executor.last_times,
    )
    return Engine(
        loop,
        loaded.tokenizer,
        config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        limits=limits,
        kv_block_bytes=executor.kv_bytes // (sizes.cache.num_blocks + 1),
        memory_use=lambda: _memory_use(executor),
        on_close=trace.close if trace is not None else None,
        compile_form=grammars.compile,
        sampling_defaults=loaded.defaults.values,
    )


def check_options(options: EngineOptions) -> None:
    """Check what can be checked before the model is there, so that no mistake costs a download.

    Raises:
        ConfigError: an option that can be used with no model, or not on this machine.
    """
    make_policy(options.early_scheduler_config())
    if options.chat_template is not None:
        check_asked_template(options.chat_template)
    check_generation_config(options.generation_config)
    if options.trace is not None:
        writable_file("trace", Path(options.trace))
    device = torch.device(_device(options.device))
    if options.preallocate and device.type != "cpu":
        raise ConfigError("preallocate", True, "has no effect on a GPU, where all memory is taken at start")
    ops = select_ops(device, options.kernels)
    check_weight_dtype(_weight_dtype(options.weight_dtype, device, ops), device, ops.native_linear is not None)


def load_model(options: EngineOptions, progress: ProgressCallback | None = None) -> LoadedModel:
    """Load the model that the options name.

    Args:
        options: those in ``MODEL_OPTIONS`` and ``cache_dir`` count.
        progress: called while the model is fetched.

    Raises:
        ConfigError, LoadingError: as :func:`build_engine`.
    """
    device = torch.device(_device(options.device))
    ops = select_ops(device, options.kernels)
    weight_dtype = _weight_dtype(options.weight_dtype, device, ops)
    source = resolve_model(options.model, cache_dir=options.cache_dir, progress=progress)
    defaults = load_generation_defaults(source, options.generation_config)
    tokenizer = load_tokenizer(source, cache_dir=options.cache_dir, chat_template=options.chat_template)
    config, weights = load_weights(source)
    # Both the model's files and its tokenizer know ends; the sampler must hold back the same ones as the scheduler.
    eos_token_ids = tuple(dict.fromkeys((*config.eos_token_ids, *tokenizer.eos_token_ids, *defaults.eos_token_ids)))
    config = dataclasses.replace(config, eos_token_ids=eos_token_ids)
    make = model_class(config.architecture)
    model = make(
        config,
        weights,
        ops=ops,
        weight_dtype=weight_dtype,
        device=device,
        max_positions=_longest(options.max_model_len, config),
    )
    return LoadedModel(options, source.name, model, tokenizer, ops, weight_dtype, tokenizer.template_note, defaults)


def _device(choice: str) -> str:
    if choice == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if choice == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", choice, "needs a GPU that torch can use, and there is none")
    return choice


def _weight_dtype(choice: str, device: torch.device, ops: Ops) -> str:
    if choice != "auto":
        return choice
    if device.type == "cuda":
        return "bfloat16"
    # float16 on a CPU is a storage format, which only the native kernels and fbgemm's can multiply with.
    multiplies = ops.native_linear is not None or "fbgemm" in torch.backends.quantized.supported_engines
    return "float16" if multiplies else "float32"


def _longest(asked: int | None, config: ModelConfig) -> int:
    """The longest sequence that was asked for, or that the model can take."""
    most = config.max_context_len
    if asked is not None and asked > most:
        raise ConfigError("max_model_len", asked, f"must be at most {most:,}, {_why_longest(config)}")
    return most if asked is None else asked


def _why_longest(config: ModelConfig) -> str:
    if config.sliding_window == config.max_context_len < config.max_position_embeddings:
        return "the model's sliding window: longer contexts, in which it hides tokens, come later"
    if config.max_context_len > config.max_position_embeddings:
        return "the model's longest context with its scaling of positions"
    return "the longest context of this model"


def _size(options: EngineOptions, model: DecoderModel) -> _Sizes:
    """Decide on KV blocks and model length."""
    config, size = model.config, options.block_size
    dtype = model.compute_dtype if options.kv_dtype == "auto" else getattr(torch, options.kv_dtype)
    longest = _longest(options.max_model_len, config)
    block_bytes = kv_block_bytes(config, size, dtype)
    num_blocks, why_blocks = _num_blocks(options, block_bytes, longest, model.device)
    cache = options.cache_config(num_blocks, _num_host_blocks(options, block_bytes))
    if options.max_model_len is not None:
        max_model_len, why_length = longest, "as asked for"
    else:
        max_model_len, why_length = _shortened(longest, _why_longest(config), options, cache)
    scheduler = options.scheduler_config(max_model_len)
    check_fits(scheduler, cache)
    return _Sizes(scheduler, cache, why_blocks, why_length)


def _shortened(longest: int, why: str, options: EngineOptions, cache: CacheConfig) -> tuple[int, str]:
    """The longest sequence that the model and all other options allow, if nobody says how long, and why."""
    fitting = tokens_that_fit(cache)
    if fitting < 2:
        raise ConfigError("num_blocks", cache.num_blocks, "must hold 2 tokens at least, one of them output")
    if fitting < longest:
        longest, why = fitting, "what the KV blocks hold"
    if not options.enable_chunked_prefill and options.max_num_batched_tokens < longest:
        longest, why = options.max_num_batched_tokens, "max_num_batched_tokens, since prompts are not cut"
    return longest, why


def _num_blocks(options: EngineOptions, block_bytes: int, longest: int, device: torch.device) -> tuple[int, str]:
    """How many blocks requests can use, and why. One more, the null block, is always there."""
    if options.num_blocks is not None:
        return options.num_blocks, "as asked for"
    if options.kv_cache_memory_gib is not None:
        fitting = int(options.kv_cache_memory_gib * GIB) // block_bytes - 1
        if fitting < 1:
            limit = f"must hold two blocks at least, {2 * block_bytes} bytes"
            raise ConfigError("kv_cache_memory_gib", options.kv_cache_memory_gib, limit)
        return fitting, "by the memory asked for"
    budget, why_budget = _budget(device)
    useful = options.max_num_seqs * -(-longest // options.block_size)
    fitting = max(1, budget // block_bytes - 1)
    if useful <= fitting:
        return useful, "all that max_num_seqs requests of the longest kind can use"
    return fitting, f"what fits into {budget / 2**20:,.0f} MiB, {why_budget}"


def _budget(device: torch.device) -> tuple[int, str]:
    """Bytes for KV blocks if nobody says how many, and why so many."""
    free = available_bytes(device)
    if free is None:
        return UNKNOWN_MEMORY, "as the system does not tell what is free"
    share = GPU_MEMORY_SHARE if device.type == "cuda" else CPU_MEMORY_SHARE
    if device.type == "cpu" and free * share > CPU_MEMORY_LIMIT:
        return CPU_MEMORY_LIMIT, "the most that is taken unasked"
    return int(free * share), f"{share:.0%} of the free memory"


def _num_host_blocks(options: EngineOptions, block_bytes: int) -> int:
    """How many blocks fit the host memory that was asked for."""
    num_blocks = int(options.swap_space_gib * GIB) // block_bytes
    if options.swap_space_gib and not num_blocks:
        raise ConfigError("swap_space_gib", options.swap_space_gib, f"must hold a block at least, {block_bytes} bytes")
    return num_blocks


def _executor(options: EngineOptions, sizes: _Sizes, model: DecoderModel, grammars: GuidanceGrammars) -> ModelExecutor:
    try:
        return ModelExecutor(
            model,
            sizes.cache,
            max_num_seqs=sizes.scheduler.max_num_seqs,
            max_num_batched_tokens=sizes.scheduler.max_num_batched_tokens,
            max_model_len=sizes.scheduler.max_model_len,
            kv_dtype=options.kv_dtype,
            seed=options.seed,
            grammars=grammars,
            preallocate=options.preallocate,
        )
    except KVMemoryError as error:
        if error.field != "num_host_blocks":
            raise
        raise ConfigError("swap_space_gib", options.swap_space_gib, error.limit) from error


def _describe(loaded: LoadedModel, sizes: _Sizes, executor: ModelExecutor, scheduler: Scheduler) -> tuple[str, ...]:
    """The limits that hold from now on."""
    config, cache, model = sizes.scheduler, sizes.cache, loaded.model
    largest = min(config.max_model_len - 1, scheduler.largest_prompt)
    return (
        f"model: {loaded.name} ({model.config.architecture}), weights in {loaded.weight_dtype},"
        f" {model.num_bytes / 2**20:,.0f} MiB",
        loaded.ops.describe(),
        f"chat template: {loaded.template_note}",
        loaded.defaults.describe(),
        f"KV memory: {cache.num_blocks:,} blocks of {cache.block_size} tokens,"
        f" {_megabytes(executor.kv_bytes, executor.kv_resident_bytes)} ({sizes.why_blocks})",
        _describe_swapping(config, cache, executor),
        f"max_model_len: {config.max_model_len:,} tokens ({sizes.why_length})",
        f"largest prompt: {largest:,} tokens",
        f"a step: at most {config.max_num_batched_tokens:,} tokens of at most {config.max_num_seqs:,} requests",
        *tight_limits(config, cache),
    )


def _describe_swapping(config: SchedulerConfig, cache: CacheConfig, executor: ModelExecutor) -> str:
    if not cache.num_host_blocks:
        return "preempted requests: computed again (no swap space)"
    how = "swapped" if config.preemption_mode == "swap" else "swapped or computed again, whichever costs less"
    return (
        f"preempted requests: {how}; swap space: {cache.num_host_blocks:,} blocks of {cache.block_size} tokens in host"
        f" memory, {_megabytes(executor.host_kv_bytes, executor.host_kv_resident_bytes)}"
    )


def _megabytes(reserved: int, resident: int) -> str:
    """How much memory there is for something, and how much it takes now."""
    return f"{reserved / 2**20:,.0f} MiB reserved, {resident / 2**20:,.0f} MiB resident at start"


def _memory_use(executor: ModelExecutor) -> MemoryUse:
    return MemoryUse(
        kv_reserved_bytes=executor.kv_bytes,
        kv_resident_bytes=executor.kv_resident_bytes,
        host_kv_reserved_bytes=executor.host_kv_bytes,
        host_kv_resident_bytes=executor.host_kv_resident_bytes,
    )


def _open_trace(options: EngineOptions, sizes: _Sizes, loaded: LoadedModel) -> TraceWriter | None:
    if options.trace is None:
        return None
    run = {
        "model": options.model,
        "seed": options.seed,
        "weight_dtype": loaded.weight_dtype,
        "kv_dtype": options.kv_dtype,
        "kernels": loaded.ops.name,
    }
    header = TraceHeader(headway.__version__, sizes.scheduler, sizes.cache, run)
    try:
        return TraceWriter(options.trace, header, timings=options.trace_timings)
    except OSError as error:
        raise ConfigError("trace", options.trace, f"must be a file that can be written ({error.strerror})") from error
