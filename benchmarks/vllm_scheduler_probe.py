"""Measures vLLM's scheduler (0.32 or 0.33, V1) on the work of ``scheduler_work.py``; prints one JSON object.

Run by ``scheduler_overhead.py --vllm-python PATH`` with an interpreter that has vLLM; it needs nothing of Headway.
No model is loaded: a configuration file stands in for one, and the sampled tokens are made up.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import vllm
from scheduler_work import (
    BLOCK_SIZE,
    CHURN_LIMITS,
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    Limits,
    StepCount,
    Work,
    clock,
    made_up_tokens,
    measure_churn,
    measure_steady,
    steady_limits,
)
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_MODEL_LEN,
    "torch_dtype": "float32",
}


def make_scheduler(folder: Path, limits: Limits) -> Scheduler:
    """vLLM's scheduler with the sizes of ``limits``: prefix caching on, one step at a time, sha256 hashes."""
    (folder / "config.json").write_text(json.dumps(MODEL_CONFIG))
    model = ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=MAX_MODEL_LEN, seed=0
    )
    scheduler = SchedulerConfig(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    cache.num_gpu_blocks = limits.num_blocks + 1  # one of them is the null block
    config = VllmConfig(
        model_config=model, scheduler_config=scheduler, cache_config=cache, device_config=DeviceConfig("cpu")
    )
    shape: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
    specs = [FullAttentionSpec(**shape)]
    if limits.num_groups == 2:  # vLLM never makes two groups of one kind; a window nobody reaches is the nearest
        specs.append(SlidingWindowSpec(sliding_window=MAX_MODEL_LEN, **shape))
    groups = [KVCacheGroupSpec([f"layer.{index}"], spec) for index, spec in enumerate(specs)]
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=limits.num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups, hash_block_size=BLOCK_SIZE
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=False,
    )


class VllmBench:
    """vLLM's scheduler, driven as its engine core does."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self._scheduler = make_scheduler(folder, limits)
        self._step = 0
        self._preemptions = 0
        self._cached_tokens = 0
        self._prompt_tokens: dict[str, int] = {}

    def prepare(self, work: Work) -> tuple[str, list[int], SamplingParams]:
        """Parts of a request; the request itself is made inside the timed part, as it hashes the prompt."""
        return work.name, work.prompt.tolist(), SamplingParams(max_tokens=work.max_tokens, ignore_eos=True)

    def step(self, arrivals: list[tuple[str, list[int], SamplingParams]]) -> StepCount:
        """One step, timed as Headway's."""
        begin = clock()
        for name, prompt, sampling in arrivals:
            self._scheduler.add_request(Request(name, prompt, sampling, None, block_hasher=self._hasher))
        plan = self._scheduler.schedule()
        seconds = clock() - begin
        output, only_decodes = self._make_up(plan)
        for row in plan.scheduled_new_reqs:
            self._cached_tokens += row.num_computed_tokens
        begin = clock()
        delivered = self._scheduler.update_from_output(plan, output)
        seconds += clock() - begin
        self._step += 1
        self._preemptions += len(plan.preempted_req_ids or ())
        outputs = [item for core in delivered.values() for item in core.outputs]
        finished = sum(item.finish_reason is not None for item in outputs)
        rows = len(plan.num_scheduled_tokens)
        return StepCount(seconds, finished, rows, plan.total_num_scheduled_tokens, only_decodes)

    def _make_up(self, plan: Any) -> tuple[ModelRunnerOutput, bool]:
        names = list(plan.num_scheduled_tokens)
        tokens = made_up_tokens(len(names), self._step).tolist()
        sampled: list[list[int]] = []
        for name, token in zip(names, tokens, strict=True):
            request = self._scheduler.requests[name]
            sampled.append([token] if request.num_computed_tokens >= request.num_tokens else [])
        places = {name: index for index, name in enumerate(names)}
        only_decodes = plan.total_num_scheduled_tokens == len(names) and all(sampled)
        return ModelRunnerOutput(names, places, sampled), only_decodes

    def counters(self) -> dict[str, int]:
        """Totals since the start."""
        return {"preemptions": self._preemptions, "cached_tokens": self._cached_tokens}


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", default="64,256,1024", help="numbers of running requests")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--two-groups", type=int, default=1024, help="running requests with two cache groups")
    parser.add_argument("--churn-steps", type=int, default=400)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"version": vllm.__version__, "steady": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for running in map(int, arguments.running.split(",")):
            bench = VllmBench(folder, steady_limits(running))
            found["steady"][str(running)] = measure_steady(bench, running, arguments.steps)
            print(f"vllm: {running} running: {found['steady'][str(running)]}", file=sys.stderr, flush=True)
        found["churn"] = measure_churn(VllmBench(folder, CHURN_LIMITS), arguments.churn_steps)
        bench = VllmBench(folder, steady_limits(arguments.two_groups, num_groups=2))
        found["two_groups"] = measure_steady(bench, arguments.two_groups, arguments.steps)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
