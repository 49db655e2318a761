"""Log probabilities under the model's own distribution: the log-softmax of the logits before any change to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headway.core.logprobs import TokenLogprobs
from headway.core.plan import Int64


@dataclass(frozen=True)
class LogprobRows:
    """Log probabilities of one token in each of ``k`` rows, still on the device.

    Attributes:
        num_top: int64[k], alternatives asked for.
        tokens, ranks: int64[k].
        logprobs: float32[k].
        top_tokens: int64[k, max(num_top)]; top_logprobs: float32 of that shape; likeliest first.
    """

    num_top: Int64
    tokens: Tensor
    ranks: Tensor
    logprobs: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor

    def to_host(self) -> list[TokenLogprobs]:
        """The same as plain objects, row by row."""
        top = zip(self.num_top.tolist(), self.top_tokens.tolist(), self.top_logprobs.tolist(), strict=True)
        alternatives = [tuple(zip(ids[:count], values[:count], strict=True)) for count, ids, values in top]
        rows = zip(self.tokens.tolist(), self.logprobs.tolist(), self.ranks.tolist(), alternatives, strict=True)
        return [TokenLogprobs(token, logprob, rank, alternative) for token, logprob, rank, alternative in rows]


def measure(logits: Tensor, tokens: Tensor, num_top: Int64) -> LogprobRows:
    """Log probabilities of ``tokens`` int64[k] under ``logits`` float32[k, vocabulary], and of the likeliest rivals.

    The rank counts the tokens that are strictly likelier, plus one.
    """
    normaliser = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(1, tokens[:, None])
    ranks = (logits > chosen).sum(-1) + 1
    width = min(int(num_top.max(initial=0)), logits.shape[1])
    top_logits, top_tokens = logits.topk(width, dim=-1)
    logprobs = (chosen - normaliser)[:, 0]
    return LogprobRows(np.minimum(num_top, width), tokens, ranks, logprobs, top_tokens, top_logits - normaliser)
