"""Linear layers: every way to store a weight against the product in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.config import ConfigError
from headway.models.ops.linear import Linear, check_weight_dtype
from headway.models.ops.registry import select_ops

CPU = torch.device("cpu")
KINDS = [
    ("torch", "float32"),
    ("torch", "float16"),
    ("native", "float32"),
    ("native", "float16"),
    ("native", "bfloat16"),
]
SHAPES = [(1, 1), (5, 3), (33, 70), (200, 129), (64, 576)]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def make(backend: str, dtype: str, weight: Tensor, bias: Tensor | None = None) -> Linear:
    return select_ops(CPU, backend).make_linear(weight, bias, dtype)


@pytest.mark.parametrize(("backend", "dtype"), KINDS)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_product(backend: str, dtype: str, out_features: int, in_features: int, has_bias: bool) -> None:
    weight = random(out_features, in_features).to(getattr(torch, dtype)).float()
    bias = random(out_features) if has_bias else None
    linear = make(backend, dtype, weight, bias)
    for rows in (1, 2, 4, 5, 12, 13, 31, 100):
        x = random(rows, in_features)
        expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        torch.testing.assert_close(linear(x).double(), expected, rtol=1e-5, atol=1e-4)
    assert (linear.in_features, linear.out_features, linear.fell_back) == (in_features, out_features, False)
    assert linear.num_bytes == weight.numel() * getattr(torch, dtype).itemsize


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_native_result_of_a_row_is_the_same_number_in_any_batch(dtype: str) -> None:
    linear = make("native", dtype, random(210, 300), random(210))
    x = random(97, 300)
    together = linear(x)
    for rows in (1, 2, 3, 7, 12, 20):
        assert torch.equal(together, torch.cat([linear(part) for part in x.split(rows)]))


@pytest.mark.parametrize(("backend", "dtype"), KINDS)
def test_rows_may_be_strided(backend: str, dtype: str) -> None:
    linear, x = make(backend, dtype, random(24, 16)), random(10, 32)[::2, ::2]
    torch.testing.assert_close(linear(x), linear(x.contiguous()))


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_weights_beyond_float16_stay_in_float32(backend: str) -> None:
    weight = random(20, 30)
    weight[3, 4] = 1e5
    linear = make(backend, "float16", weight)
    assert linear.fell_back
    assert "float32" in linear.kind and linear.num_bytes == weight.numel() * 4
    x = random(3, 30)
    torch.testing.assert_close(linear(x), x @ weight.T, rtol=1e-5, atol=0.1)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_weights_that_are_not_numbers_stay_in_float32(backend: str) -> None:
    weight = random(20, 30)
    weight[3, 4] = float("inf")
    assert make(backend, "float16", weight).fell_back


def test_unknown_weight_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight_dtype='int3'.* one of float32, float16, bfloat16"):
        check_weight_dtype("int3", CPU, has_native=True)
    with pytest.raises(ConfigError, match=r"weight_dtype='bfloat16'.*needs the native kernels on the CPU"):
        check_weight_dtype("bfloat16", CPU, has_native=False)


def test_float16_on_the_cpu_needs_a_kernel_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_weight_dtype("float16", CPU, has_native=False)
    monkeypatch.setattr("headway.models.ops.linear.has_fbgemm", lambda: False)
    check_weight_dtype("float16", CPU, has_native=True)
    check_weight_dtype("float16", torch.device("cuda"), has_native=False)
    with pytest.raises(ConfigError, match=r"weight_dtype='float16'.*native kernels or fbgemm"):
        check_weight_dtype("float16", CPU, has_native=False)
