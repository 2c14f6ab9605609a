"""A case: a program, inputs from a seeded pattern, a dense reference; run once by each executor.

    CASES = [Case("csrmm", csrmm, lambda: ([sparse(A), X], A @ X))]

    @conform(CASES)
    def test_products(case: Case, executor: str) -> None:
        judge(case, executor)

Executors: the interpreters of stage I, II, III (as lowered, as scheduled for C and for Triton) and of tile form;
C; Triton's interpreter; a GPU by marker. Where work lists are used, a case runs without and with them.
A general format must be walked as it is: a silent conversion fails, unless the case says that it `converts`.
`fuzz.cross` runs the same cases in every `Variant`: other patterns, index widths and dtypes.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from ops.places import INTERPRETER
from semantics.stages import STAGES, run_step
from torch import Tensor

import tilewright as tw
from tilewright.formats.tree import Tree
from tilewright.ops.backend import backend
from tilewright.ops.dtypes import TORCH
from tilewright.ops.step import Step

# loops and flat are what for-c and for-triton begin from
EXECUTORS = (*(s for s in STAGES if s not in ("loops", "flat")), "c", "triton", "cuda")
_CALL = Step.__call__
CALL = importlib.import_module("tilewright.ops.call")


@dataclass(frozen=True)
class Case:
    """make: inputs and the dense result."""

    name: str
    run: Callable[..., Any]
    make: Callable[[], tuple[Sequence[Any], Any]]
    tolerance: float = 2e-5
    converts: bool = False


PATTERNS = ("usual", "empty", "one", "full", "giant", "column", "unsorted")


@dataclass(frozen=True)
class Variant:
    """What the inputs of a case are made of. Numbers are then multiples of 1/8, not zero: exact in every dtype."""

    pattern: str
    index: torch.dtype
    dtype: torch.dtype

    def __str__(self) -> str:
        index, dtype = (str(d).removeprefix("torch.") for d in (self.index, self.dtype))
        return f"{self.pattern}, {index}, {dtype}"

    def mask(self, held: np.ndarray) -> np.ndarray:
        """Where the entries of a tensor are, instead of the usual places."""
        made = np.full_like(held, self.pattern == "full")
        match self.pattern:
            case "usual" | "unsorted":
                return held
            case "one":
                made[tuple(n // 2 for n in held.shape)] = True
            case "giant":
                made[held.shape[0] // 2] = True
                made[-1, 0] = True
            case "column":
                made[..., held.shape[-1] // 2] = True
        return made

    def given(self, v: Any) -> Any:
        """An input in this dtype; whole numbers are indices and stay."""
        if isinstance(v, tw.SparseTensor) and v.values is not None:
            return v.with_values(self.given(v.values))
        return v.to(self.dtype) if isinstance(v, Tensor) and v.is_floating_point() else v


_VARIANT: list[Variant] = []


def made_in(case: Case, v: Variant) -> tuple[list[Any], Any]:
    """The inputs of a case in a variant, and the result in f64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    _VARIANT.append(v)
    try:
        inputs, want = case.make()
    finally:
        _VARIANT.pop()
        torch.set_default_dtype(before)
    return [v.given(t) for t in inputs], want


def conform(cases: Sequence[Case]) -> Any:
    """One test for each case and executor."""
    made = []
    for c in cases:
        for executor in EXECUTORS:
            marks: list[Any] = []
            if executor == "cuda":
                marks.append(pytest.mark.gpu)
            if executor == "triton":
                marks.append(INTERPRETER)
            made.append(pytest.param(c, executor, marks=marks, id=f"{c.name}-{executor}"))
    return pytest.mark.parametrize("case,executor", made)


def judge(case: Case, executor: str) -> None:
    """Run a case and compare it with its reference."""
    inputs, want = case.make()
    compare(case, execute(case.run, inputs, executor, case.converts), want)
    if executor in ("triton", "cuda"):
        for v in inputs:
            if isinstance(v, tw.SparseTensor) and not isinstance(v.structure, Tree):
                v.prepare()
        compare(case, execute(case.run, inputs, executor, case.converts), want)


def compare(case: Case, got: Sequence[np.ndarray], want: Any) -> None:
    wanted = want if isinstance(want, tuple) else (want,)
    for g, w in zip(got, wanted, strict=True):
        w = w.detach().cpu().double().numpy() if isinstance(w, Tensor) else np.asarray(w)
        np.testing.assert_allclose(g, w, rtol=case.tolerance, atol=case.tolerance)


def execute(
    run: Callable[..., Any], inputs: Sequence[Any], executor: str, converts: bool = True
) -> list[np.ndarray]:
    """The outputs as dense arrays in f64."""
    if executor == "cuda":
        inputs = [v.to("cuda") if isinstance(v, Tensor | tw.SparseTensor) else v for v in inputs]
    with ExitStack() as stack:
        stack.enter_context(backend("c" if executor in ("c", "for-c", "cuda") else "triton"))
        if executor in STAGES:
            stack.enter_context(interpreted(executor))
        if not converts:
            stack.enter_context(unconverted())
        got = run(*inputs)
    return [dense(g) for g in (got if isinstance(got, tuple) else (got,))]


def dense(t: Any) -> np.ndarray:
    if isinstance(t, tw.SparseTensor) and t.values is not None:
        stored = tuple(t.structure.values_shape)
        assert tuple(t.values.shape)[: len(stored)] == stored, (
            "values that do not fit the structure"
        )
    made = t.to_dense() if isinstance(t, tw.SparseTensor) else t
    found: np.ndarray = made.detach().cpu().double().numpy()
    return found


@contextmanager
def interpreted(stage: str) -> Iterator[None]:
    """Statements are interpreted at a stage instead of compiled."""

    def call(step: Step, tensors: Any, ints: Any, floats: Any) -> list[Tensor]:
        fresh = copy.copy(step)
        fresh.kernels, fresh.quick = {}, {}
        fresh.pieces = [fresh] if len(step.pieces) == 1 else step.pieces
        with mock.patch.object(Step, "__call__", _CALL):
            made = run_step(stage, fresh, tensors, ints, floats)
        outs = step.bound.program.outputs
        return [torch.from_numpy(np.asarray(made[t.name])).to(TORCH[t.dtype]) for t in outs]

    with mock.patch.object(Step, "__call__", call):
        yield


@contextmanager
def unconverted() -> Iterator[None]:
    """A general format that is turned into csr behind the scenes is a failure."""
    plain = CALL.as_rows

    def refuse(a: tw.SparseTensor) -> tw.SparseTensor:
        assert not isinstance(a.structure, Tree), f"{a.format} was converted to csr"
        return plain(a)

    with mock.patch.object(CALL, "as_rows", refuse):
        yield


# --- inputs -----------------------------------------------------------------------------------------


def matrix(rows: int = 9, cols: int = 11, fill: float = 0.3, seed: int = 0) -> Tensor:
    """A dense matrix with zeros; row 2 is empty, row 3 is full."""
    made = cube(rows, cols, fill=fill, seed=seed)
    if rows > 3 and not (_VARIANT and _VARIANT[-1].pattern not in ("usual", "unsorted")):
        made[2] = 0
        made[3] = numbers(cols, seed=seed + 100)
    return made


def cube(*shape: int, fill: float = 0.25, seed: int = 0) -> Tensor:
    """A dense tensor with zeros."""
    rng = np.random.default_rng(seed)
    held = rng.random(shape) < fill
    if _VARIANT:
        return numbers(*shape, seed=seed) * torch.from_numpy(_VARIANT[-1].mask(held))
    return torch.from_numpy((rng.standard_normal(shape) * held).astype(np.float32))


def numbers(*shape: int, seed: int = 1) -> Tensor:
    rng = np.random.default_rng(seed)
    if _VARIANT:
        return torch.from_numpy(rng.integers(1, 17, shape) * rng.choice([-1, 1], shape) / 8.0)
    made = rng.standard_normal(shape)
    return torch.from_numpy(made.astype(np.float32))


def sparse(dense: Tensor, format: str = "csr", block: tuple[int, int] | None = None) -> Any:
    """The entries that are not zero."""
    if _VARIANT:
        rows, cols = _places(dense)
        made = tw.SparseTensor.from_coo(rows, cols, dense[rows.long(), cols.long()], dense.shape)
        return made.to_format(format, block)
    return tw.SparseTensor.from_dense(dense).to_format(format, block)


def tensor(dense: Tensor, format: str = "csf") -> Any:
    """An n-dimensional one."""
    at = _places(dense)
    return tw.SparseTensor.from_coords(
        at, dense[tuple(at.long())], tuple(dense.shape), format=format
    )


def _places(dense: Tensor) -> Tensor:
    """The coordinates of what is not zero: in order, or as the variant says."""
    at = dense.nonzero()
    if _VARIANT and _VARIANT[-1].pattern == "unsorted":
        at = at[torch.from_numpy(np.random.default_rng(0).permutation(len(at)))]
    return at.T.contiguous().to(_VARIANT[-1].index if _VARIANT else torch.int64)
