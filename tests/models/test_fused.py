"""Both implementations of the small operations against their definitions in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headway.models.ops.fused import Fused, HeadLayout
from headway.models.ops.registry import select_ops

BACKENDS = ("torch", "native")
TOLERANCE = {"rtol": 2e-6, "atol": 2e-6}
WIDTHS = (1, 16, 70, 576)
COUNTS = (1, 3, 130)


def fused_of(backend: str) -> Fused:
    return select_ops("cpu", backend).fused


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()).float()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_norms(backend: str, width: int, count: int) -> None:
    fused, x, residual, weight = fused_of(backend), random(count, width), random(count, width) * 3, random(width)
    torch.testing.assert_close(fused.rms_norm(x, weight, 1e-5), norm(x, weight, 1e-5), **TOLERANCE)
    total = x + residual
    torch.testing.assert_close(fused.add_rms_norm(x, residual, weight, 1e-5), norm(total, weight, 1e-5), **TOLERANCE)
    assert torch.equal(residual, total)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_gated_activation(backend: str, width: int, count: int) -> None:
    gate_up = random(count, 2 * width) * 10
    gate, up = gate_up.double().chunk(2, dim=-1)
    expected = (functional.silu(gate) * up).float()
    torch.testing.assert_close(fused_of(backend).silu_mul(gate_up), expected, **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gated_activation_of_extreme_gates(backend: str) -> None:
    gate = torch.tensor([-1e30, -1000.0, -100.0, -90.0, -88.0, -87.0, -50.0, 0.0, 50.0, 90.0, 1000.0, 1e30]).repeat(3)
    out = fused_of(backend).silu_mul(torch.cat((gate, torch.ones_like(gate)))[None])
    torch.testing.assert_close(out[0], torch.where(gate < 0, 0.0, gate), rtol=1e-6, atol=1e-20)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_a_number_stays_so_in_its_own_token(backend: str) -> None:
    fused, x, weight = fused_of(backend), random(4, 70), random(70)
    x[2, 5] = float("nan")
    assert fused.rms_norm(x, weight, 1e-5).isnan().any(1).tolist() == [False, False, True, False]
    assert fused.silu_mul(x).isnan().any(1).tolist() == [False, False, True, False]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("head_dim", [2, 10, 64])
def test_rotation(backend: str, with_norms: bool, head_dim: int) -> None:
    heads, kv_heads, count = 3, 2, 40
    norms = (random(head_dim), random(head_dim) + 1) if with_norms else (None, None)
    layout = HeadLayout(heads, kv_heads, head_dim, *norms, eps=1e-5)
    qkv = random(count, (heads + 2 * kv_heads) * head_dim)
    positions = torch.randint(0, 50, (count,), generator=torch.Generator().manual_seed(1))
    angles = random(50, head_dim // 2)
    expected = qkv.clone().view(count, -1, head_dim)
    for head in range(heads + kv_heads):
        weight = norms[0 if head < heads else 1]
        x = expected[:, head] if weight is None else norm(expected[:, head], weight, 1e-5)
        turn = torch.polar(torch.ones(count, head_dim // 2, dtype=torch.float64), angles[positions].double())
        turned = torch.complex(*x.double().chunk(2, dim=-1)) * turn
        expected[:, head] = torch.cat((turned.real, turned.imag), dim=-1).float()
    table = torch.stack((angles.double().cos(), angles.double().sin()), dim=1).float()
    fused_of(backend).rotate(qkv, layout, positions, table)
    torch.testing.assert_close(qkv.view(count, -1, head_dim), expected, **TOLERANCE)


@pytest.mark.parametrize("name", ["rms_norm", "silu_mul"])
def test_native_result_of_a_token_is_the_same_number_in_any_batch(name: str) -> None:
    fused, x, weight = fused_of("native"), random(300, 140), random(140)
    operation = (lambda part: fused.rms_norm(part, weight, 1e-5)) if name == "rms_norm" else fused.silu_mul
    together = operation(x)
    assert torch.equal(together, torch.cat([operation(x[i : i + 1]) for i in range(300)]))
