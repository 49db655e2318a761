"""Sampling parameters as columns: written when a request enters its slot, read by every step that samples for it."""

from __future__ import annotations

import numpy as np

from headway.config import ConfigError
from headway.core.plan import AdmittedRow, Int64
from headway.executor.bans import Bans
from headway.executor.edits import Float32
from headway.executor.randomness import request_key

NOT_ASKED = -1


class SlotParameters:
    """Sampling parameters by slot: one array per parameter, each with ``max_num_seqs`` entries.

    Attributes:
        bias: slot -> (int64 ids, float32 values), for requests with a logit bias.
        stop_ids: slot -> int64 ids that must not be sampled before ``min_tokens`` outputs.
        bans: slot -> token sequences that must not come.
        keys: uint64, what the request's random numbers are made from.
        num_logprobs, num_prompt_logprobs: alternatives asked for; ``NOT_ASKED`` if no log probabilities are wanted.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self.num_prompt = np.zeros(max_num_seqs, np.int64)
        self.temperature = np.zeros(max_num_seqs)
        self.top_k = np.zeros(max_num_seqs, np.int64)
        self.top_p = np.ones(max_num_seqs)
        self.min_p = np.zeros(max_num_seqs)
        self.repetition = np.ones(max_num_seqs, np.float32)
        self.presence = np.zeros(max_num_seqs, np.float32)
        self.frequency = np.zeros(max_num_seqs, np.float32)
        self.penalised = np.zeros(max_num_seqs, np.bool_)
        self.biased = np.zeros(max_num_seqs, np.bool_)
        self.banned = np.zeros(max_num_seqs, np.bool_)
        self.min_tokens = np.zeros(max_num_seqs, np.int64)
        self.keys = np.zeros(max_num_seqs, np.uint64)
        self.num_logprobs = np.full(max_num_seqs, NOT_ASKED, np.int64)
        self.num_prompt_logprobs = np.full(max_num_seqs, NOT_ASKED, np.int64)
        self.bias: dict[int, tuple[Int64, Float32]] = {}
        self.stop_ids: dict[int, Int64] = {}
        self.bans: dict[int, Bans] = {}

    def admit(self, row: AdmittedRow) -> None:
        """Write the parameters of a request into its slot.

        Raises:
            ConfigError: a logit bias names a token outside the vocabulary; it is then left out.
        """
        slot, params = row.slot, row.sampling
        self.num_prompt[slot] = row.num_prompt_tokens
        self.temperature[slot] = 0.0 if params.greedy else params.temperature
        self.top_k[slot] = params.top_k if params.top_k < self._vocab_size else 0
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.repetition[slot] = params.repetition_penalty
        self.presence[slot] = params.presence_penalty
        self.frequency[slot] = params.frequency_penalty
        self.penalised[slot] = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )
        self.keys[slot] = request_key(params.seed, self._seed, row.handle)
        self.num_logprobs[slot] = NOT_ASKED if params.logprobs is None else params.logprobs
        self.num_prompt_logprobs[slot] = NOT_ASKED if params.prompt_logprobs is None else params.prompt_logprobs
        ending = [token for token in row.ending_token_ids if token < self._vocab_size]
        self.stop_ids[slot] = np.array(ending, np.int64)
        self.min_tokens[slot] = params.min_tokens if len(self.stop_ids[slot]) else 0
        self.banned[slot] = bool(params.bad_token_ids)
        if params.bad_token_ids:
            self.bans[slot] = Bans(params.bad_token_ids)
        self.biased[slot] = False
        if params.logit_bias:
            ids = np.array(list(params.logit_bias), np.int64)
            outside = ids[(ids < 0) | (ids >= self._vocab_size)]
            if len(outside):
                limit = f"must name tokens of the vocabulary, 0 to {self._vocab_size - 1}"
                raise ConfigError("logit_bias", int(outside[0]), limit)
            self.bias[slot] = (ids, np.array(list(params.logit_bias.values()), np.float32))
            self.biased[slot] = True
