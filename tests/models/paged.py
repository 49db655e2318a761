"""Drives a model over a paged cache: the smallest executor, for tests of models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from headway.models.llama import DecoderModel
from headway.models.ops.attention import BatchMeta, kv_cache_shape


def batch_meta(rows: Sequence[tuple[int, int]], tables: Sequence[Sequence[int]], block_size: int) -> BatchMeta:
    """Inputs for rows ``(first position, number of tokens)`` whose blocks are ``tables``."""
    positions = [torch.arange(start, start + count) for start, count in rows]
    slots = [
        torch.tensor(table)[at // block_size] * block_size + at % block_size
        for at, table in zip(positions, tables, strict=True)
    ]
    width = max(len(table) for table in tables)
    padded = [list(table) + [0] * (width - len(table)) for table in tables]
    bounds = torch.tensor([0, *(count for _, count in rows)]).cumsum(0)
    return BatchMeta(
        positions=torch.cat(positions),
        slot_mapping=torch.cat(slots),
        qo_indptr=bounds.int(),
        context_lens=torch.tensor([start + count for start, count in rows], dtype=torch.int32),
        block_tables=torch.tensor(padded, dtype=torch.int32),
    )


def scattered_tables(lengths: Sequence[int], block_size: int, seed: int = 0) -> tuple[list[list[int]], int]:
    """Block tables for requests of these lengths, blocks in random order; and how many blocks there are in all."""
    counts = [-(-length // block_size) for length in lengths]
    blocks = (torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed)) + 1).tolist()
    ends = torch.tensor([0, *counts]).cumsum(0).tolist()
    return [blocks[begin:end] for begin, end in pairwise(ends)], sum(counts) + 1


class PagedRunner:
    """Some requests in one paged cache; each call of :meth:`step` runs one flat batch of them."""

    def __init__(self, model: DecoderModel, lengths: Sequence[int], block_size: int = 4) -> None:
        config = model.config
        self._model, self._block_size = model, block_size
        self._tables, num_blocks = scattered_tables(lengths, block_size)
        shape = kv_cache_shape(num_blocks, config.num_kv_heads, block_size, config.head_dim)
        self._kv = [torch.zeros(shape) for _ in range(config.num_layers)]

    def step(self, rows: Sequence[tuple[int, int, Sequence[int]]]) -> Tensor:
        """Run rows ``(request, first position, token ids)``; float32[n, vocab], the scores after each row."""
        spans = [(start, len(ids)) for _, start, ids in rows]
        meta = batch_meta(spans, [self._tables[request] for request, _, _ in rows], self._block_size)
        hidden = self._model.forward(torch.tensor([i for _, _, ids in rows for i in ids]), self._kv, meta)
        return self._model.logits(hidden[meta.qo_indptr[1:].long() - 1])


def greedy(model: DecoderModel, prompt: Sequence[int], num_outputs: int, chunk: int = 10**9) -> list[int]:
    """Likeliest outputs for one prompt, computed in chunks of this many tokens."""
    runner, tokens = PagedRunner(model, [len(prompt) + num_outputs]), list(prompt)
    computed = 0
    while len(tokens) < len(prompt) + num_outputs:
        ids = tokens[computed : computed + chunk]
        scores = runner.step([(0, computed, ids)])
        computed += len(ids)
        if computed == len(tokens):
            tokens.append(int(scores.argmax()))
    return tokens[len(prompt) :]
