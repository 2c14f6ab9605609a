"""tw.explain: what it shows of kernels, launches, programs and tensors."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.ops.backend import backend
from tilewright.runtime.kernel import Kernel
from tilewright.view import explain as view
from tilewright.view.cases import case
from tilewright.view.words import amount, compiled_words, loop_words, schedule_words

PARTS = ["arguments", "stages", "schedule", "generated code", "compiled", "cost"]


def tensors() -> tuple[tw.SparseTensor, torch.Tensor]:
    return case("uniform", 64, 4), torch.randn(64, 32)


@tw.program
def relu_max(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))


@tw.program
def in_two(a: Any, x: Any, c: Any, h: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    h[j, f] = tw.relu(x[j, f] + c)
    y[i, f] = tw.sum(j, a[i, j] * h[j, f])


def titles(told: view.Explanation) -> list[str]:
    return [s.title for s in told.sections]


def test_launch_in_c() -> None:
    told = tw.explain(tw.spmm.plan(*tensors()))  # type: ignore[attr-defined]
    assert titles(told) == ["plan", *PARTS]
    text = told.text(160)
    assert "a: csr f32 [64, 64], i64 indices" in text and "fill " in text
    assert "x: dense f32 [64, 32]" in text and "y: dense f32 [64, 32], written" in text
    assert "void spmm_sum(" in text
    assert "vector loops of up to 128" in text and "i in 0:n_i: in parallel" in text
    assert "expected" in text and "GB/s memory" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter")
def test_launch_in_triton() -> None:
    with backend("triton"):
        told = tw.explain(tw.spmm.plan(*tensors()))  # type: ignore[attr-defined]
    text = told.text(300)
    assert "@triton.jit" in text and "tile form" in text
    assert "rows in a unit" in text and "entries unrolled" in text
    assert "units from a work list" in text
    columns = told["stages"].body
    assert isinstance(columns, dict)
    order = ["stage I:", "stage II:", "stage III:", "stage III,", "tile form"]
    assert [t.startswith(o) for t, o in zip(columns, order, strict=True)] == [True] * 5


def test_operator_with_inputs() -> None:
    a, x = tensors()
    assert titles(tw.explain(tw.spmm, a, x)) == ["plan", *PARTS]
    assert "sddmm" in str(tw.explain(tw.sddmm, a, x, x))
    assert "operand0" in str(tw.explain(tw.einsum, "ij,jf->if", a, x))


@pytest.mark.parametrize("name", ["c", "triton"])
def test_program_with_inputs(name: str) -> None:
    with backend(name):
        told = tw.explain(relu_max, *tensors())
    assert told.title.splitlines()[0] == "program relu_max(a, x, y)"
    assert titles(told) == PARTS
    assert "x read through an index array" in told["cost"].inner(120)


def test_program_of_several_statements() -> None:
    told = tw.explain(in_two, *tensors(), 0.5)
    assert [t for t in titles(told) if t.startswith("cost")] == [
        "cost of statement 1",
        "cost of statement 2",
    ]
    assert "h read through" in told["cost of statement 2"].inner(120)
    assert "h[j, f] = relu(x[j, f] + c)" in str(tw.explain(in_two))


def test_program_alone() -> None:
    text = tw.explain(relu_max).text(400)
    assert "y[i, f] = max(j, a[i, j] * relu(x[j, f]))" in text
    assert f"at {__file__}:" in text
    assert tw.explain(relu_max.trace()).text(400) == text


def test_sparse_tensor() -> None:
    a, _ = tensors()
    assert str(a) in tw.explain(a).text(400)


def test_kernel() -> None:
    kernel = tw.spmm.plan(*tensors()).kernel  # type: ignore[attr-defined]
    assert titles(tw.explain(kernel)) == PARTS[1:-1]


def test_blocks_are_drawn() -> None:
    q = torch.randn(1, 1, 32, 8)
    mask = tw.block_mask(torch.tensor([[True, False], [True, True]]), block=16)
    text = str(tw.explain(tw.attention.plan(q, q, q, mask)))  # type: ignore[attr-defined]
    assert "mask: block_mask" in text and "rows of blocks" in text


@pytest.mark.parametrize("width", [60, 100, 240])
def test_width(width: int) -> None:
    """Everything but code, which is not folded."""
    told = tw.explain(tw.spmm, *tensors())
    for s in told.sections:
        if not s.code:
            assert max(map(len, s.text(width).splitlines())) <= width


def test_a_prompt_shows_it() -> None:
    told = tw.explain(tw.spmm, *tensors())
    assert repr(told) == str(told)


def test_options_of_operators() -> None:
    a, x = tensors()
    assert "mean(j" in str(tw.explain(tw.spmm, a, x, reduce="mean"))
    assert "sddmm_add" in str(tw.explain(tw.sddmm, a, x, x, op="add"))
    assert titles(tw.explain(tw.spmm, a, x, values=a.explicit_values())) == ["plan", *PARTS]
    for thing in (tw.spmm, relu_max):
        with pytest.raises(tw.TilewrightError, match="colour = 3"):
            tw.explain(thing, a, x, colour=3)


def test_anything_else_is_refused() -> None:
    for given in ((3,), (tw.spmm,), (print, 1)):
        with pytest.raises(tw.TilewrightError, match="a kernel, a launch"):
            tw.explain(*given)


class Terminal:
    """What `show` prints to."""

    def __init__(self) -> None:
        self.said = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.said += text
        return len(text)

    def flush(self) -> None:
        pass


def test_show_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *rest)

    out = Terminal()
    told = tw.explain(tw.spmm, *tensors())
    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr("sys.stdout", out)
    told.show()
    assert out.said.strip() == str(told).strip()


def test_show_with_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    tw.explain(tw.spmm, *tensors()).show()
    assert "spmm_sum" in out.said and "compulsory" in out.said


# --- words ------------------------------------------------------------------------------------------


def made(setting: dict[str, int], compiled: Any = None, backend: str = "triton") -> Kernel:
    stages = {
        "scheduled": "def k(a):\n  for i in grid(n):\n    for f in lane(32, i32):\n      j = 1"
    }
    return Kernel(
        "k", backend, (), (), (), stages, lambda: None, setting, seconds=0.5, compiled=compiled
    )


def test_schedule_in_words() -> None:
    given = {"warps": 2, "rows": 8, "unroll": 4, "outer": 0, "whole": 1, "group": 1}
    first, *loops = schedule_words(made(given))
    assert first == (
        "8 rows in a unit, 4 entries unrolled, one tile holds all features, 2 warps in a program"
    )
    assert loops == ["  i in 0:n: in parallel", "    f in 0:32: all at once"]
    assert loop_words("no loops") == []


def test_compiled_facts() -> None:
    class Meta:
        shared, num_warps, num_stages = 1024, 4, 3

    class Compiled:
        n_regs, n_spills, metadata = 64, 0, Meta()

    assert compiled_words(made({}, Compiled())) == [
        "registers 64, spills 0, shared memory bytes 1024, warps 4, stages 3, made in 0.50 s"
    ]
    assert compiled_words(made({})) == ["made in 0.50 s"]


def test_amounts() -> None:
    assert [amount(n, "B") for n in (0, 999, 1500, 2.5e9)] == ["0 B", "999 B", "1.5 kB", "2.5 GB"]


@pytest.mark.parametrize(
    "format", ["csc", "coo", "dcsr", "ell", "padded", "csf", "dia", "bitmap", "srbcrs"]
)
def test_every_format_is_drawn(format: str) -> None:
    A, x = tensors()
    A = A.to_format(format)
    told = str(tw.explain(tw.spmm, A, x)["arguments"].body)
    assert "[64, 64]" in told and "fill " in told and "values: " in told


def test_three_dimensions_are_drawn() -> None:
    A = tw.SparseTensor.from_dense(torch.ones(3, 4, 5), dims=3, format="csf")
    told = tw.explain(tw.einsum, "ijk,kf->if", A, torch.ones(5, 2))
    assert "[3, 4, 5]" in str(told["arguments"].body)
