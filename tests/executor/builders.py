"""A small model with a real KV cache, and a driver that makes plans by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.config import CacheConfig, SamplingParams
from headway.core.plan import AdmittedRow, NewBlocks, StepPlan, StepResult
from headway.executor.executor import ModelExecutor
from headway.models.config import ModelConfig
from headway.models.ops.attention import BatchMeta, TorchAttention

VOCAB = 50
EOS = 0
BLOCK = 4
NUM_BLOCKS = 60


class ToyModel:
    """Embedding, two attention layers, head; random weights. ``poison``: a token whose hidden state is NaN."""

    def __init__(self, poison: int | None = None) -> None:
        self.config = ModelConfig(
            architecture="llama", vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_layers=2, num_heads=2,
            num_kv_heads=1, head_dim=8, eos_token_ids=(EOS,),
        )  # fmt: skip
        self.device = torch.device("cpu")
        self.compute_dtype = torch.float32
        self.poison = poison
        self.explode = False
        self.rows_in_head: list[int] = []
        generator = torch.Generator().manual_seed(7)
        self._embedding = torch.randn(VOCAB, 16, generator=generator)
        self._places = torch.randn(64, 16, generator=generator)
        self._keys = torch.randn(2, 16, 16, generator=generator) / 4

    def forward(self, token_ids: Tensor, kv_caches: Sequence[Tensor], meta: BatchMeta) -> Tensor:
        if self.explode:
            raise RuntimeError("out of luck")
        x = self._embedding[token_ids] + self._places[meta.positions]
        for kv_cache, keys in zip(kv_caches, self._keys, strict=True):
            k, v = (x @ keys).unflatten(1, (2, 1, 8)).unbind(1)
            q = x.unflatten(1, (2, 8))
            x = x + TorchAttention().write_kv_and_attend(q, k, v, kv_cache, meta, 0.35)
        if self.poison is not None:
            x = torch.where((token_ids == self.poison)[:, None], torch.nan, x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        self.rows_in_head.append(len(hidden))
        return hidden @ self._embedding.T


def make_executor(model: ToyModel | None = None, **overrides: Any) -> ModelExecutor:
    """8 slots, 64 tokens a step and a request, 60 blocks of 4 tokens."""
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64, **overrides}
    cache = limits.pop("cache", CacheConfig(block_size=BLOCK, num_blocks=NUM_BLOCKS))
    return ModelExecutor(model or ToyModel(), cache, **limits)


class Driver:
    """Makes the plans that its calls ask for, gives out blocks, and collects the tokens by slot."""

    def __init__(self, executor: ModelExecutor | None = None) -> None:
        self.executor = executor or make_executor()
        self.outputs: dict[int, list[int]] = {}
        self._requests: dict[int, AdmittedRow] = {}
        self._known: dict[int, int] = {}
        self._computed: dict[int, int] = {}
        self._held: dict[int, list[int]] = {}
        self._free = list(range(NUM_BLOCKS, 0, -1))
        self._new: list[AdmittedRow] = []
        self._released: list[int] = []
        self._in_flight: deque[StepPlan] = deque()
        self._step = 0

    def admit(
        self, slot: int, tokens: Sequence[int], *, handle: int = 0, num_prompt: int | None = None, **sampling: Any
    ) -> None:
        """Enter a request; greedy unless ``sampling`` says otherwise. A resumed one names ``num_prompt``."""
        row = AdmittedRow(
            slot=slot,
            handle=handle or slot + 1,
            request_id=f"r{slot}",
            tokens=np.array(tokens, np.int32),
            num_prompt_tokens=len(tokens) if num_prompt is None else num_prompt,
            num_computed_tokens=0,
            block_ids=(),
            sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": None, **sampling}),
            resumed=num_prompt is not None,
            ending_token_ids=(EOS,),
        )
        self._requests[slot] = row
        self._known[slot], self._computed[slot], self._held[slot] = len(tokens), 0, []
        self.outputs[slot] = list(tokens[row.num_prompt_tokens :])
        self._new.append(row)

    def release(self, slot: int) -> None:
        """Take a request off its slot."""
        self._free += self._held.pop(slot)
        del self._requests[slot]
        self._released.append(slot)

    def submit(self, grants: Mapping[int, int]) -> None:
        """Submit a plan that gives each slot so many tokens."""
        self._step += 1
        slots, counts = list(grants), list(grants.values())
        starts = [self._computed[slot] for slot in slots]
        added: list[tuple[int, int, int]] = []
        for slot, count in grants.items():
            self._computed[slot] += count
            held = self._held[slot]
            while len(held) * BLOCK < self._computed[slot]:
                added.append((slot, len(held), self._free.pop()))
                held.append(added[-1][2])
        fresh = {row.slot for row in self._new}
        table = np.array([entry for entry in added if entry[0] not in fresh], np.int32).reshape(-1, 3)
        samples = np.array([self._computed[slot] == self._known[slot] for slot in slots])
        for slot, sample in zip(slots, samples, strict=True):
            self._known[slot] += int(sample)
        blocks = {slot: np.array(self._held[slot], np.int32) for slot in fresh}
        plan = StepPlan(
            step=self._step,
            slots=np.array(slots, np.int32),
            num_scheduled=np.array(counts, np.int32),
            starts=np.array(starts, np.int32),
            samples=samples,
            new_blocks=(NewBlocks(table[:, 0], table[:, 1], table[:, 2]),),
            admitted=tuple(AdmittedRow(**{**row.__dict__, "block_ids": (blocks[row.slot],)}) for row in self._new),
            released=np.array(self._released, np.int32),
        )
        self._new, self._released = [], []
        self._in_flight.append(plan)
        self.executor.submit(plan)

    def collect(self) -> StepResult:
        """Collect the oldest plan and note its tokens."""
        plan, result = self._in_flight.popleft(), self.executor.collect()
        assert result.step == plan.step
        for row, slot in enumerate(plan.slots.tolist()):
            self.outputs[slot] += result.tokens[row, : result.counts[row]].tolist()
        return result

    def step(self, grants: Mapping[int, int]) -> StepResult:
        """Submit and collect."""
        self.submit(grants)
        return self.collect()

    def decode(self, slot: int, num_steps: int, others: Sequence[int] = ()) -> list[int]:
        """Run one token per step for ``slot`` and ``others``; the outputs of ``slot`` so far."""
        for _ in range(num_steps):
            self.step(dict.fromkeys([*others, slot], 1))
        return self.outputs[slot]
