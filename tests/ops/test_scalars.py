"""Scalar functions of the notation: all stages, C and Triton, special values, and slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ops.matrices import close, gradcheck, leaf, randn
from ops.places import Place
from semantics.stages import STAGES, run_stage
from torch import Tensor

import tilewright as tw
from tilewright.ops.args import dense_arg, program_text
from tilewright.ops.backend import backend
from tilewright.ops.program import Program

F64 = torch.float64
INF, NAN = float("inf"), float("nan")
SPECIAL = [INF, -INF, NAN, 0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30, 60.0, -60.0, 1e30]

# name: (in the notation, in torch)
ONE: dict[str, tuple[Callable[[Any], Any], Callable[[Tensor], Tensor]]] = {
    n: (getattr(tw, n), getattr(torch, n))
    for n in (
        "exp exp2 expm1 log log2 log1p tanh sigmoid erf sqrt rsqrt sin cos abs sign floor ceil relu"
    ).split()
}
ONE |= {
    "softplus": (tw.softplus, lambda x: torch.logaddexp(x, torch.zeros_like(x))),
    "leaky_relu": (lambda x: tw.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, 0.2)),
    "gelu": (tw.gelu, F.gelu),
    "gelu-tanh": (lambda x: tw.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "silu": (tw.silu, F.silu),
    "neg": (lambda x: -x, torch.neg),
    "cube": (lambda x: x**3, lambda x: x**3),
    "inverse-square": (lambda x: tw.pow(x, -2), lambda x: x**-2.0),
    "power": (lambda x: tw.pow(x, 1.7), lambda x: x**1.7),
    "of-two": (lambda x: 2.0**x, lambda x: 2.0**x),
    "clipped": (lambda x: tw.where(x > 1.0, 1.0, x), lambda x: torch.where(x > 1, 1, x)),
    "step": (lambda x: x * (x >= 0.5), lambda x: x * (x >= 0.5)),
    "outside": (
        lambda x: tw.where(~((x > -1.0) & (x < 1.0)) | tw.equal(x, 0.0), x, 7.0),
        lambda x: torch.where(~((x > -1) & (x < 1)) | (x == 0), x, 7),
    ),
    "different": (
        lambda x: tw.where(tw.not_equal(x, x), 1.0, x),
        lambda x: x.nan_to_num(1, INF, -INF),
    ),
}
TWO: dict[str, tuple[Callable[..., Any], Callable[..., Tensor]]] = {
    "maximum": (tw.maximum, torch.maximum),
    "minimum": (tw.minimum, torch.minimum),
    "pow": (tw.pow, torch.pow),
    "divide": (lambda a, b: a / b, torch.div),
    "less": (lambda a, b: tw.where(a < b, 1.0, 0.0), lambda a, b: (a < b).to(a.dtype)),
    "at-most": (lambda a, b: tw.where(a <= b, 1.0, 0.0), lambda a, b: (a <= b).to(a.dtype)),
}


def one(name: str) -> Program:
    def fn(x: Any, y: Any) -> None:
        i, f = tw.axes("i f")
        y[i, f] = ONE[name][0](x[i, f])

    fn.__name__ = f"one_{name.replace('-', '_')}"
    return tw.program(fn)


def two(name: str) -> Program:
    def fn(x: Any, z: Any, y: Any) -> None:
        i, f = tw.axes("i f")
        y[i, f] = TWO[name][0](x[i, f], z[i, f])

    fn.__name__ = f"two_{name.replace('-', '_')}"
    return tw.program(fn)


UNARY = {n: one(n) for n in ONE}
BINARY = {n: two(n) for n in TWO}
POSITIVE = ("log", "log2", "sqrt", "rsqrt", "power", "inverse-square")


def check(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    tolerance = {F64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(
        got.double(), want.double(), rtol=tolerance, atol=tolerance * 1e-3, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ONE)
def test_one(name: str, dtype: torch.dtype, where: Place) -> None:
    x = randn(4, 33, dtype=dtype, device=where.device) * 3
    x = x.abs() + 0.1 if name in POSITIVE else x
    want = ONE[name][1](x.double()).to(dtype)
    if name.startswith("gelu"):  # 1 + erf cancels far to the left, as it does in torch
        close(UNARY[name](x), want)
    else:
        check(UNARY[name](x), want, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("name", ONE)
def test_special(name: str, dtype: torch.dtype, where: Place) -> None:
    x = torch.tensor([SPECIAL], dtype=dtype, device=where.device)
    if name in ("sin", "cos"):
        x = x.clamp(-60, 60)
    want = ONE[name][1](x.double()).to(dtype)
    if name.startswith("gelu") or name == "silu":  # -inf * 0
        want[x == -INF] = NAN
    if name == "sign":
        want[x.isnan()] = 0
    check(UNARY[name](x), want, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("name", TWO)
def test_two(name: str, dtype: torch.dtype, where: Place) -> None:
    some = torch.tensor([*SPECIAL[:7], 3.0, -3.0, 0.5], dtype=dtype, device=where.device)
    x, z = some[:, None].expand(10, 10).contiguous(), some[None].expand(10, 10).contiguous()
    got, want = BINARY[name](x, z), TWO[name][1](x.double(), z.double())
    if where.backend == "triton" and name in (
        "pow",
        "divide",
    ):  # the sign of zero is not told there
        got, want = got.abs(), want.abs()
    check(got, want, dtype)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ONE)
def test_stage(name: str, stage: str) -> None:
    x = torch.cat([torch.tensor(SPECIAL), randn(21)])[None]
    x = x.clamp(-60, 60) if name in ("sin", "cos") else x
    with backend("c" if stage == "for-c" else "triton"):
        text = program_text(UNARY[name].trace().name, (dense_arg("x", x),))
        got = run_stage(stage, text, [x], [], [])
        compiled = UNARY[name](x)
    check(torch.from_numpy(np.asarray(got, np.float32)).view(x.shape), compiled, torch.float32)


@pytest.mark.parametrize("name", ["exp", "sqrt", "sigmoid"])
def test_of_integers(name: str, where: Place) -> None:
    """Integers become floats; where the result is an integer again it is cut."""
    x = torch.tensor([[0, 1, 4, 9]], device=where.device)
    assert torch.equal(UNARY[name](x), ONE[name][1](x.float()).long())


@pytest.mark.parametrize("name", ["abs", "sign", "floor", "ceil", "relu", "neg"])
def test_integers_stay(name: str, where: Place) -> None:
    x = torch.tensor([[0, -1, 4, 2**60 + 1]], device=where.device)
    want = {"floor": x, "ceil": x}.get(name)
    assert torch.equal(UNARY[name](x), ONE[name][1](x) if want is None else want)


@tw.program
def quotients(t: Any, s: Any, q: Any, r: Any) -> None:
    (i,) = tw.axes("i")
    q[i] = t[i] // s[i]
    r[i] = t[i] % s[i] + 100 * (t[i] // -4) + 10000 * (t[i] % 3)


@tw.program
def before(x: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    y.sized(x.dim(0))
    y[i] = x[(i - 1) % 5]


@tw.program
def many_times(t: Any, c: Any, y: Any) -> None:
    (i,) = tw.axes("i")
    y[i] = t[i] * c


def test_whole_quotients(where: Place) -> None:
    """As Python has them: rounded down, whatever the signs; 0 where Python has none."""
    t, s = (
        n.flatten().to(where.device)
        for n in torch.meshgrid(torch.arange(-7, 8), torch.arange(-3, 4), indexing="ij")
    )
    safe, none = torch.where(s == 0, 1, s), s == 0
    q, r = quotients(t, s)
    assert torch.equal(q, torch.where(none, 0, t // safe))
    assert torch.equal(r, torch.where(none, 0, t % safe) + 100 * (t // -4) + 10000 * (t % 3))
    x = leaf(torch.arange(5.0, device=where.device))
    assert torch.equal(before(x), x.roll(1))
    with pytest.raises(tw.TilewrightError, match="whole numbers"):
        quotients(t.float(), s)


def test_numbers_beside_integers(where: Place) -> None:
    t = torch.tensor([1, -3, 2**40], device=where.device)
    assert torch.equal(many_times(t, 3), t * 3) and torch.equal(
        many_times(t, 0.5), (t * 0.5).long()
    )


SMOOTH = [n for n in ONE if n not in ("sign", "floor", "ceil", "different", "of-two")]


@pytest.mark.parametrize("name", SMOOTH)
def test_slope(name: str, fast: Place) -> None:
    x = randn(3, 5, dtype=F64, device=fast.device)
    x = x.abs() + 0.3 if name in POSITIVE or name == "log1p" else x
    x[(x.abs() < 0.1) | ((x.abs() - 1).abs() < 0.05) | ((x - 0.5).abs() < 0.05)] = 0.2
    assert gradcheck(UNARY[name], (leaf(x),))


@pytest.mark.parametrize("name", ["maximum", "minimum", "pow", "divide"])
def test_slopes(name: str, fast: Place) -> None:
    x, z = (randn(3, 5, seed=n, dtype=F64, device=fast.device).abs() + 0.5 for n in (1, 2))
    assert gradcheck(BINARY[name], (leaf(x), leaf(z)))


@pytest.mark.parametrize("name", ["tanh", "expm1", "log1p", "softplus", "gelu", "silu"])
def test_slope_everywhere(name: str, where: Place) -> None:
    x = randn(2, 9, device=where.device) * 4
    got, want = leaf(x), leaf(x.double())
    if name == "log1p":
        got, want = leaf(x.abs()), leaf(x.double().abs())
    UNARY[name](got).sum().backward()
    ONE[name][1](want).sum().backward()
    close(got.grad, want.grad)


def test_literals_have_the_precision_of_the_program(where: Place) -> None:
    """0.1 is a double beside doubles."""

    @tw.program
    def tenth(x: Any, y: Any) -> None:
        i, f = tw.axes("i f")
        y[i, f] = tw.where(x[i, f] > 2.0, tw.maximum(x[i, f] * 0.1, 0.3), 0.7)

    x = torch.tensor([[1.0, 2.5, 7.0]], dtype=F64, device=where.device)
    assert tenth(x).tolist() == [[0.7, 0.3, 7.0 * 0.1]]


@pytest.mark.parametrize("clash", ["total", "best", "acc"])
def test_a_tensor_called_like_a_state(clash: str, where: Place) -> None:
    space: dict[str, Any] = {"tw": tw}
    text = f"""def named(x, {clash}):
    i, j = tw.axes("i j")
    {clash}[i] = tw.{"logsumexp" if clash == "total" else "argmax" if clash == "best" else "sum"}(j, x[i, j])
"""
    exec(text, space)
    x = randn(3, 4, device=where.device)
    want = {"total": x.logsumexp(1), "best": x.argmax(1), "acc": x.sum(1)}[clash]
    torch.testing.assert_close(tw.program(space["named"])(x), want)
