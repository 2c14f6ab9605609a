"""Operators: programs in the language, compiled by the pipeline, with gradients."""

import operator
from types import MethodDescriptorType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilewright.formats.interop import is_scipy, is_torch_sparse
from tilewright.formats.tensor import SparseTensor
from tilewright.ops import dynamic
from tilewright.ops.arithmetic import add, multiply
from tilewright.ops.arithmetic import matmul as sparse_matmul
from tilewright.ops.attention import attention
from tilewright.ops.bsr_matmul import bsr_matmul
from tilewright.ops.changing import NUMBERS
from tilewright.ops.einsum import einsum
from tilewright.ops.grouped_matmul import grouped_matmul
from tilewright.ops.index import Index
from tilewright.ops.linear import linear
from tilewright.ops.linear_relu import linear_relu
from tilewright.ops.masked_linear import masked_linear
from tilewright.ops.matmul import matmul
from tilewright.ops.program import program
from tilewright.ops.sddmm import sddmm
from tilewright.ops.softmax import softmax
from tilewright.ops.sparse import as_sparse
from tilewright.ops.spmm import spmm
from tilewright.ops.spmv import spmv
from tilewright.ops.tuning import tune
from tilewright.support.errors import CATALOGUE, error, said
from tilewright.support.places import public


def _sparse(b: Any, where: str) -> Any:
    """Torch's and SciPy's sparse matrices as SparseTensors; all else as it is."""
    if isinstance(b, SparseTensor | int | float):
        return b
    return as_sparse(b, where, "B") if is_torch_sparse(b) or is_scipy(b) else b


@public
def _matmul(a: SparseTensor, x: Any) -> Tensor | SparseTensor:
    b = _sparse(x, "A @ B")
    return sparse_matmul(a, b) if isinstance(b, SparseTensor) else spmm(a, b)


def _number(b: Any, where: str, known: str) -> Any:
    """A number, or a tensor of one without dimensions; entries are in no order that a tensor could follow."""
    if isinstance(b, Tensor) and b.dim() == 0:
        return b
    if isinstance(b, NUMBERS):
        return b.item() if isinstance(b, np.generic) else b
    kinds = {Tensor: "a tensor", np.ndarray: "an array"}
    kind = next((called for t, called in kinds.items() if isinstance(b, t)), "")
    got = f"{kind} of {said(tuple(b.shape))}" if kind else repr(b)
    expected = f"{known}; A.map(fn) changes the stored values as they lie"
    raise error("argument", where=where, name="b", got=got, expected=expected)


@public
def _multiply(a: SparseTensor, b: Any) -> SparseTensor:
    b = _sparse(b, "A * B")
    if isinstance(b, SparseTensor):
        return multiply(a, b)
    number = _number(b, "A * b", "a number or a SparseTensor")
    return a.map(lambda v: v * number)


@public
def _divide(a: SparseTensor, b: Any) -> SparseTensor:
    number = _number(b, "A / b", "a number")
    return a.map(lambda v: v / number)


def _term(b: Any, where: str) -> SparseTensor:
    made = _sparse(b, where)
    if not isinstance(made, SparseTensor):
        expected = (
            "a sparse matrix; A.map(fn) changes the stored values, A.to_dense() has all others"
        )
        raise error("argument", where=where, name="B", got=type(b).__name__, expected=expected)
    return made


@public
def _add(a: SparseTensor, b: Any) -> SparseTensor:
    return add(a, _term(b, "A + B"))


@public
def _subtract(a: SparseTensor, b: Any) -> SparseTensor:
    return add(a, _term(b, "A - B"), -1)


@public
def _subtract_from(a: SparseTensor, b: Any) -> SparseTensor:
    return add(_term(b, "A - B"), a, -1)


@public
def _negative(a: SparseTensor) -> SparseTensor:
    if a.dtype == torch.bool:
        expected = "numbers, as those of A.float()"
        raise error("dtype", where="-A", name="A", got=a.dtype, expected=expected)
    return a.map(lambda v: -v)


@public
def _multiplied_from_left(a: SparseTensor, x: Any) -> Tensor | SparseTensor:
    b = _sparse(x, "A @ B")
    if isinstance(b, SparseTensor):
        return sparse_matmul(b, a)
    raise error("dense-by-sparse", where="x @ A")


CURE = CATALOGUE["dense-by-sparse"].cure
PRODUCTS = (operator.matmul, torch.matmul, Tensor.matmul, Tensor.__matmul__)
SCALED = (operator.mul, torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
DIVIDED = (operator.truediv, torch.div, torch.true_divide, Tensor.div, Tensor.__truediv__)
DIVIDING = (Tensor.__rdiv__, Tensor.__rtruediv__)


def _refused(func: Any) -> Any:
    """torch.relu(A) is told what to write instead; operators of Python may find an answer on the other side."""
    operators = isinstance(func, MethodDescriptorType) or func in vars(Tensor).values()
    if torch.compiler.is_compiling() or operators:
        return NotImplemented
    name = getattr(func, "__name__", "function")
    got = "a SparseTensor, which torch's functions do not know"
    expected = (
        "A.map(fn) for the values, tw.spmm and tw.einsum for sums, A.to_dense() for the matrix"
    )
    raise error("argument", where=f"{name}(A)", name="A", got=got, expected=expected)


def _two(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The operands; results are tensors of their own, so that there is no out=."""
    more = dict(kwargs or {})
    a, b = list(args) + [more.pop(n) for n in ("input", "other") if n in more]
    for name in (n for n, v in more.items() if v is not None):
        where, expected = f"{func.__name__}(A, ...)", "None: what it makes is a tensor of its own"
        raise error("argument", where=where, name=name, got="a tensor", expected=expected)
    return a, b


@public
def _torch_function(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """torch.matmul(A, x), s * A and A / s. torch.compile makes a product by x of A @ x, as it does of x @ A: nobody can
    tell which."""
    if func in SCALED:
        a, b = _two(func, args, kwargs)
        return _multiply(a, b) if isinstance(a, SparseTensor) else _multiply(b, a)
    if func in DIVIDED and isinstance(args[0], SparseTensor) and not kwargs:
        return _divide(*args)
    if func in DIVIDING and isinstance(args[1], SparseTensor):
        return _divide(args[1], args[0])
    if func not in PRODUCTS:
        return _refused(func)
    a, b = _two(func, args, kwargs)
    if isinstance(a, SparseTensor):
        return _matmul(a, b)
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=f"A @ x inside of torch.compile: {CURE}")
    raise error("dense-by-sparse", where="x @ A")


SparseTensor.__torch_function__ = classmethod(_torch_function)  # type: ignore[attr-defined]
SparseTensor.__matmul__ = _matmul  # type: ignore[operator, attr-defined, unused-ignore]
SparseTensor.__add__ = _add  # type: ignore[operator, attr-defined, unused-ignore]
SparseTensor.__radd__ = _add  # type: ignore[operator, attr-defined, unused-ignore]
SparseTensor.__mul__ = _multiply  # type: ignore[operator, attr-defined, unused-ignore]
SparseTensor.__rmul__ = _multiply  # type: ignore[operator, attr-defined, unused-ignore]
SparseTensor.__truediv__ = _divide  # type: ignore[operator, attr-defined, unused-ignore]
SparseTensor.__sub__ = _subtract  # type: ignore[operator, attr-defined, unused-ignore]
SparseTensor.__rsub__ = _subtract_from  # type: ignore[operator, attr-defined, unused-ignore]
SparseTensor.__rmatmul__ = _multiplied_from_left  # type: ignore[operator, attr-defined, unused-ignore]
SparseTensor.__array_ufunc__ = None  # type: ignore[attr-defined]  # NumPy leaves `array * A` to A
SparseTensor.__neg__ = _negative  # type: ignore[operator, attr-defined, unused-ignore]

__all__ = [
    "Index",
    "attention",
    "bsr_matmul",
    "dynamic",
    "einsum",
    "grouped_matmul",
    "linear",
    "linear_relu",
    "masked_linear",
    "matmul",
    "program",
    "sddmm",
    "softmax",
    "spmm",
    "spmv",
    "tune",
]
