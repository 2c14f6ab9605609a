"""A case: a program, inputs from a seeded pattern, a dense reference; run once by each executor.

    CASES = [Case("csrmm", csrmm, lambda: ([sparse(A), X], A @ X))]

    @conform(CASES)
    def test_products(case: Case, executor: str) -> None:
        judge(case, executor)

Executors: the interpreters of stage I, II, III (as lowered, as scheduled for C and for Triton) and of tile form;
C; Triton's interpreter; a GPU by marker. Where work lists are used, a case runs without and with them.
A general format must be walked as it is: a silent conversion fails, unless the case says that it `converts`.
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

EXECUTORS = (*STAGES, "c", "triton", "cuda")
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
    if rows > 3:
        made[2] = 0
        made[3] = numbers(cols, seed=seed + 100)
    return made


def cube(*shape: int, fill: float = 0.25, seed: int = 0) -> Tensor:
    """A dense tensor with zeros."""
    rng = np.random.default_rng(seed)
    held = rng.random(shape) < fill
    return torch.from_numpy((rng.standard_normal(shape) * held).astype(np.float32))


def numbers(*shape: int, seed: int = 1) -> Tensor:
    made = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(made.astype(np.float32))


def sparse(dense: Tensor, format: str = "csr", block: tuple[int, int] | None = None) -> Any:
    """The entries that are not zero."""
    return tw.SparseTensor.from_dense(dense).to_format(format, block)


def tensor(dense: Tensor, format: str = "csf") -> Any:
    """An n-dimensional one."""
    at = dense.nonzero().T.contiguous()
    return tw.SparseTensor.from_coords(at, dense[tuple(at)], tuple(dense.shape), format=format)
