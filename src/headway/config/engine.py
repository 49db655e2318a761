"""Options of a whole engine: the model and where it runs, and everything that scheduler and KV memory take."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from headway.config.combinations import check_fits
from headway.config.options import Checked, ConfigError, option
from headway.config.scheduler import CacheConfig, SchedulerConfig


def same_as(options: type[Checked], name: str) -> Any:
    """The option ``name`` of another dataclass: default, help, unit and bounds are written once, there."""
    spec = {spec.name: spec for spec in dataclasses.fields(options)}[name]  # type: ignore[arg-type]
    return dataclasses.field(default=spec.default, metadata=spec.metadata)


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Checked):
    """What one engine is made of. Options of the scheduler and the KV memory mean what they mean there."""

    model: str = option(help="A model's alias, folder, GGUF file or hub name.")
    device: str = option("auto", help="Where it runs; auto is a GPU if there is one.", choices=("auto", "cpu", "cuda"))
    weight_dtype: str = option(
        "auto",
        help="How weights are stored; auto is float16 on a CPU (computed in float32), bfloat16 on a GPU.",
        choices=("auto", "float32", "float16", "bfloat16"),
    )
    kv_dtype: str = option(
        "auto",
        help="How keys and values are stored; auto is the dtype of the activations.",
        choices=("auto", "float32", "float16", "bfloat16"),
    )
    kernels: str = option(
        "auto",
        help="Kernels for attention and small operations; auto is native on a CPU where they can be built.",
        choices=("auto", "native", "torch"),
    )
    chat_template: str | None = option(
        None,
        help="Chat template to use instead of the model's: a file, Jinja text, one of the model's by name, or one of"
        " chatml, llama3, mistral and plain.",
    )
    generation_config: str = option(
        "auto",
        help="Where defaults of sampling parameters come from: auto is the model's generation_config.json or GGUF keys,"
        " headway ignores them; else a file, or a folder with one.",
    )
    seed: int = option(0, help="Requests without a seed of their own draw from this one.", minimum=0)
    cache_dir: str | None = option(None, help="Folder for fetched models; none is the user's cache folder.")
    trace: str | None = option(None, help="File to write the step trace to.")
    trace_timings: bool = option(False, help="Also write times to the trace, so that two equal runs differ.")

    block_size: int = same_as(CacheConfig, "block_size")
    num_blocks: int | None = option(
        None, help="KV blocks that requests can use; none sizes them by memory.", unit="blocks", minimum=1
    )
    kv_cache_memory_gib: float | None = option(
        None, help="Memory for the KV blocks; none takes a share of what is free.", unit="GiB", minimum=0.0
    )
    preallocate: bool = option(
        False,
        help="Take all memory for KV blocks and swap space at start, or refuse to start if it is not there; off"
        " reserves it, and a CPU's is taken as blocks are first written to.",
    )
    enable_prefix_caching: bool = same_as(CacheConfig, "enable_prefix_caching")
    swap_space_gib: float = option(
        0.0,
        help="Host memory for the KV of preempted requests; 0 turns swapping off.",
        unit="GiB",
        minimum=0.0,
    )

    max_model_len: int | None = option(
        None,
        help="Longest sequence, prompt and output together; none is the most that model and KV blocks allow.",
        unit="tokens",
        minimum=2,
    )
    max_num_seqs: int = same_as(SchedulerConfig, "max_num_seqs")
    max_num_batched_tokens: int = same_as(SchedulerConfig, "max_num_batched_tokens")
    enable_chunked_prefill: bool = same_as(SchedulerConfig, "enable_chunked_prefill")
    scheduling_policy: str = same_as(SchedulerConfig, "scheduling_policy")
    ageing_s: float | None = same_as(SchedulerConfig, "ageing_s")
    reservation: str = same_as(SchedulerConfig, "reservation")
    max_overtakes: int = same_as(SchedulerConfig, "max_overtakes")
    preemption_mode: str = same_as(SchedulerConfig, "preemption_mode")
    victim: str = same_as(SchedulerConfig, "victim")
    watermark: float = same_as(SchedulerConfig, "watermark")
    prefill_schedule_interval: int = same_as(SchedulerConfig, "prefill_schedule_interval")
    long_prefill_token_threshold: int = same_as(SchedulerConfig, "long_prefill_token_threshold")
    max_num_queued_reqs: int | None = same_as(SchedulerConfig, "max_num_queued_reqs")
    max_num_queued_tokens: int | None = same_as(SchedulerConfig, "max_num_queued_tokens")

    def check(self) -> None:
        if not self.model:
            raise ConfigError("model", self.model, "must name a model")
        if self.num_blocks is not None and self.kv_cache_memory_gib is not None:
            raise ConfigError("kv_cache_memory_gib", self.kv_cache_memory_gib, "must be none if num_blocks is given")
        if self.preemption_mode == "swap" and not self.swap_space_gib:
            raise ConfigError("swap_space_gib", self.swap_space_gib, "must be above 0 with preemption_mode swap")
        if self.preemption_mode == "recompute" and self.swap_space_gib:
            raise ConfigError("swap_space_gib", self.swap_space_gib, "has no effect with preemption_mode recompute")
        if self.scheduling_policy == "longest_prefix" and not self.enable_prefix_caching:
            raise ConfigError(
                "scheduling_policy", self.scheduling_policy, "has no effect without enable_prefix_caching"
            )
        scheduler = self.early_scheduler_config()
        if self.num_blocks is not None and self.max_model_len is not None:
            check_fits(scheduler, self.cache_config(self.num_blocks))

    def early_scheduler_config(self) -> SchedulerConfig:
        """The scheduler's part as far as it is known before the model is there.

        Raises:
            ConfigError: its options break a rule, whatever the model's length.
        """
        harmless = max(2, self.max_num_batched_tokens)  # a length that breaks no rule unless every length does
        return self.scheduler_config(harmless if self.max_model_len is None else self.max_model_len)

    def scheduler_config(self, max_model_len: int) -> SchedulerConfig:
        """The scheduler's part, with the model length that was decided on."""
        names = [spec.name for spec in dataclasses.fields(SchedulerConfig) if spec.name != "max_model_len"]
        return SchedulerConfig(max_model_len=max_model_len, **{name: getattr(self, name) for name in names})

    def cache_config(self, num_blocks: int, num_host_blocks: int = 0) -> CacheConfig:
        """The KV memory's part, with the numbers of blocks that were decided on."""
        return CacheConfig(
            block_size=self.block_size,
            num_blocks=num_blocks,
            enable_prefix_caching=self.enable_prefix_caching,
            num_host_blocks=num_host_blocks,
        )
