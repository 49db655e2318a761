"""The Llama family: Llama and SmolLM2, Qwen2 (bias on q, k, v), Qwen3 (norm on q, k) and Mistral without a window.

One decoder layer of all of them, with ``norm`` an RMS norm::

    residual += o(attention(rotate(qkv(norm(residual)))))
    residual += down(silu(gate(norm(residual))) * up(norm(residual)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headway.config import ConfigError
from headway.models.config import ModelConfig
from headway.models.ops.attention import BatchMeta
from headway.models.ops.fused import HeadLayout
from headway.models.ops.linear import Linear, check_weight_dtype, fits_float16
from headway.models.ops.registry import Ops
from headway.models.rope import rope_table


@dataclass(frozen=True)
class _Layer:
    """Weights of one decoder layer, fused for fewer and larger products."""

    input_norm: Tensor
    qkv: Linear
    heads: HeadLayout
    o: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class _WeightReader:
    """Takes tensors by their Hugging Face names, checks shapes, stores them for the device."""

    def __init__(self, weights: Mapping[str, Tensor], weight_dtype: str, ops: Ops) -> None:
        self._weights = weights
        self._weight_dtype = weight_dtype
        self._ops = ops
        self._device = ops.device
        self.compute_dtype = torch.float32 if ops.device.type == "cpu" else getattr(torch, weight_dtype)
        self.notes: list[str] = []
        self.num_bytes = 0

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor as it came."""
        if name not in self._weights:
            raise ConfigError("weights", name, "is missing from the checkpoint")
        tensor = self._weights[name]
        if tuple(tensor.shape) != shape:
            raise ConfigError("weights", name, f"must have shape {shape} as the config says, not {tuple(tensor.shape)}")
        return tensor

    def norm(self, name: str, width: int) -> Tensor:
        """A norm's weight in the dtype of the activations."""
        return self.tensor(f"{name}.weight", width).to(self._device, self.compute_dtype).contiguous()

    def linear(self, names: Sequence[str], outs: Sequence[int], width: int, bias: bool) -> Linear:
        """Several projections of the same input as one."""
        sized = list(zip(names, outs, strict=True))
        weight = _joined([self.tensor(f"{name}.weight", out, width) for name, out in sized])
        biases = _joined([self.tensor(f"{name}.bias", out) for name, out in sized]) if bias else None
        linear = self._ops.make_linear(weight, biases, self._weight_dtype)
        if linear.fell_back:
            self.notes.append(f"{' + '.join(names)}: values beyond {self._weight_dtype}, kept in float32")
        self.num_bytes += linear.num_bytes
        return linear

    def embedding(self, name: str, rows: int, width: int) -> Tensor:
        """A lookup table in the weights' dtype, or float32 where that cannot hold it."""
        table = self.tensor(name, rows, width)
        dtype = getattr(torch, self._weight_dtype)
        if dtype == torch.float16 and not fits_float16(table):
            self.notes.append(f"{name}: values beyond float16, kept in float32")
            dtype = torch.float32
        self.num_bytes += table.numel() * dtype.itemsize
        return table.to(self._device, dtype).contiguous()


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


class DecoderModel:
    """A decoder-only model of the Llama family over a paged KV cache.

    Attributes:
        config: its shape.
        device: where it runs.
        compute_dtype: dtype of activations and KV: float32 on the CPU, the weights' dtype elsewhere.
        notes: what was stored otherwise than asked, one sentence each.
        num_bytes: memory of the weights.
    """

    config: ModelConfig

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        *,
        ops: Ops,
        weight_dtype: str = "float32",
        device: torch.device | str = "cpu",
        max_positions: int | None = None,
    ) -> None:
        """Take the weights over; they are copied, fused and packed, so the mapping can be dropped afterwards.

        Args:
            config: the model's shape.
            weights: tensors by their Hugging Face names ("model.layers.0.self_attn.q_proj.weight").
            ops: kernels, from :func:`~headway.models.ops.registry.select_ops` for the same device.
            weight_dtype: "float32", "float16" or (not on the CPU) "bfloat16".
            device: where to run.
            max_positions: longest context that will be asked for; ``config.max_context_len`` if ``None``.

        Raises:
            ConfigError: a weight is missing or has another shape than the config says, or the dtype cannot be used.
        """
        self.config = config
        self.device = torch.device(device)
        if ops.device != self.device:
            raise ConfigError("device", str(device), f"must be the kernels' device, {ops.device}")
        check_weight_dtype(weight_dtype, self.device, ops.native_linear is not None)
        read = _WeightReader(weights, weight_dtype, ops)
        self.compute_dtype = read.compute_dtype
        self._attention = ops.attention
        self._fused = ops.fused
        self._scale = config.head_dim**-0.5
        self._rope = rope_table(config, max_positions or config.max_context_len).to(self.device)
        self._embedding = read.embedding("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self._layers = [_read_layer(read, config, index) for index in range(config.num_layers)]
        self._final_norm = read.norm("model.norm", config.hidden_size)
        head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        self._head = read.linear((head,), (config.vocab_size,), config.hidden_size, bias=False)
        self.notes = tuple(read.notes)
        self.num_bytes = read.num_bytes

    def forward(self, token_ids: Tensor, kv_caches: Sequence[Tensor], meta: BatchMeta) -> Tensor:
        """Run one flat batch and write its KV.

        Args:
            token_ids: int64[T].
            kv_caches: one tensor per layer, :func:`~headway.models.ops.attention.kv_cache_shape`.
            meta: where the tokens stand and where their KV goes.

        Returns:
            [T, hidden_size] in the compute dtype, after the final norm.

        Raises:
            IndexError: a token stands beyond ``max_positions``.
        """
        # Native kernels would read beyond the table; on a GPU torch checks it, and looking here would make us wait.
        if self.device.type == "cpu" and int(meta.positions.max()) >= len(self._rope):
            raise IndexError(
                f"position {int(meta.positions.max())} is beyond the {len(self._rope)} the model was made for"
            )
        eps = self.config.rms_norm_eps
        residual = functional.embedding(token_ids, self._embedding).to(self.compute_dtype)
        x = self._fused.rms_norm(residual, self._layers[0].input_norm, eps)
        next_norms = [layer.input_norm for layer in self._layers[1:]] + [self._final_norm]
        for layer, kv_cache, next_norm in zip(self._layers, kv_caches, next_norms, strict=True):
            qkv = layer.qkv(x)
            self._fused.rotate(qkv, layer.heads, meta.positions, self._rope)
            attended = self._attention.write_kv_and_attend(*layer.heads.split(qkv), kv_cache, meta, self._scale)
            x = self._fused.add_rms_norm(layer.o(attended), residual, layer.post_norm, eps)
            x = layer.down(self._fused.silu_mul(layer.gate_up(x)))
            x = self._fused.add_rms_norm(x, residual, next_norm, eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary: [m, hidden_size] -> float32[m, vocab_size].

        Call it for the rows that sample only: the head is a quarter of a small model's work.
        """
        return self._head(hidden).float()


def _read_layer(read: _WeightReader, config: ModelConfig, index: int) -> _Layer:
    prefix = f"model.layers.{index}"
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_heads * dim, config.num_kv_heads * dim
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = [f"{attention}.{name}_proj" for name in "qkv"]
    gate_up = [f"{mlp}.gate_proj", f"{mlp}.up_proj"]
    q_norm = read.norm(f"{attention}.q_norm", dim) if config.qk_norm else None
    k_norm = read.norm(f"{attention}.k_norm", dim) if config.qk_norm else None
    return _Layer(
        input_norm=read.norm(f"{prefix}.input_layernorm", hidden),
        qkv=read.linear(qkv, (q_width, kv_width, kv_width), hidden, config.qkv_bias),
        heads=HeadLayout(config.num_heads, config.num_kv_heads, dim, q_norm, k_norm, config.rms_norm_eps),
        o=read.linear((f"{attention}.o_proj",), (hidden,), q_width, config.o_bias),
        post_norm=read.norm(f"{prefix}.post_attention_layernorm", hidden),
        gate_up=read.linear(gate_up, (inner, inner), hidden, config.mlp_bias),
        down=read.linear((f"{mlp}.down_proj",), (hidden,), inner, config.mlp_bias),
    )
