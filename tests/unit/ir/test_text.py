"""The printer: what each stage looks like, names that would clash, and expressions that Python evaluates."""

from __future__ import annotations

import ast

import pytest
from builders import spmm
from sketches.words import buffer, fold, grid, init, ints, lane, let, load, program, serial, store

from tilewright.ir import flat
from tilewright.ir.expr import Bin, Buffer, Cast, Const, Expr, LaneReduce, Select, Un, Var, eq
from tilewright.ir.text import text
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position

COORD = """\
@coord
def spmm(a: f32[n_i, n_j].on(i, j).stored(a_nnz), x: f32[n_j, n_f], y: out[f32[n_i, n_f]]):
    a_indptr: index[i32[n_i + 1]]
    a_indices: index[i32[a_nnz]]
    i = dense(n_i)
    j = sparse(under=i, indptr=a_indptr, indices=a_indices)
    y[i, f] = sum(j, a[i, j] * x[j, f])"""

LOOPS = """\
@loops
def spmm(
    a_indptr: index[i32[n_i + 1]],
    a_indices: index[i32[a_nnz]],
    a: f32[a_nnz],
    x: f32[n_j, n_f],
    y: out[f32[n_i, n_f]],
    n_i, n_j, a_nnz, n_f,
):
    for i in range(n_i):
        for f in range(n_f):
            acc = init(sum)
            for p_j in range(a_indptr[i], a_indptr[i + 1]):
                j = a_indices[p_j]
                acc = fold(sum, acc, a[p_j] * x[j, f])
            y[i, f] = acc"""

FLAT = LOOPS.replace("@loops", "@flat").replace("range(", "serial(")
FLAT = FLAT.replace("x[j, f]", "x[j * n_f + f]").replace("y[i, f]", "y[i * n_f + f]")


def test_stages() -> None:
    p = spmm([[0, 2], [], [1]], 3, 5).program
    loops = lower_to_position(p)
    assert [text(p), text(loops), text(lower_to_flat(loops))] == [COORD, LOOPS, FLAT]


def test_text_is_python() -> None:
    for said in (COORD, LOOPS, FLAT):
        ast.parse(said)


# --- names ------------------------------------------------------------------------------------------


def test_two_variables_of_one_name() -> None:
    n = Var("n")
    y = buffer("y", "f32", n, role="out")
    i, k, other = Var("i"), Var("i"), Var("y", "f32")
    said = text(
        program("f", [y], grid(i, n, serial(k, 0, 2, let(other, 1.0), store(y, i + k, other))))
    )
    assert said.splitlines()[2:] == [
        "    for i in grid(n):",
        "        for i_1 in serial(2):",
        "            y_1 = 1.0",
        "            y[i + i_1] = y_1",
    ]


def test_order_names_the_printed_loops() -> None:
    n = Var("n")
    y = buffer("y", "f32", n, role="out")
    v = Var("y")
    said = text(program("f", [y], grid(v, n, store(y, v, 1.0)), order=("y",), swizzle=4))
    assert said.startswith("@flat(order=(y_1,), swizzle=4)\n")


def test_dtypes_that_nothing_tells() -> None:
    n, x = Var("n", "i32"), Var("x", "f64")
    y = Buffer("y", "f32", (n,), "out", (Const(2, "i64"),))
    i, j = Var("i", "i32"), Var("j", "i64")
    body = (lane(i, 8, let(j, i), store(y, j, x)),)
    said = text(flat.Program("f", (y,), (n,), (Var("c", "f32"),), body, ((n, 16),)))
    assert said.splitlines() == [
        "@flat(divisors={n: 16})",
        "def f(y: out[f32[n].strides(2)], n: size[i32], c: scalar[f32]):",
        "    x: f64",
        "    for i in lane(8, i32):",
        "        j: i64 = i",
        "        y[j] = x",
    ]


def test_monoid_of_another_dtype() -> None:
    n, acc = Var("n"), Var("acc", "f32")
    x, y = buffer("x", "f32", n), buffer("y", "f32", 1, role="out")
    i = ints("i")[0]
    p = program("f", [x, y], init("sum", acc), serial(i, 0, n, fold("sum", acc, load(x, i))))
    assert "acc = fold(sum, acc, x[i])" in text(p)


# --- expressions ------------------------------------------------------------------------------------

A, B, C = Var("a"), Var("b"), Var("c")


@pytest.mark.parametrize(
    ("e", "said"),
    [
        (Bin("*", Bin("+", A, B), C), "(a + b) * c"),
        (Bin("-", A, Bin("-", B, C)), "a - (b - c)"),
        (Bin("-", Bin("-", A, B), C), "a - b - c"),
        (Bin("&", A < B, B < C), "(a < b) & (b < c)"),
        (Bin("<", Bin("&", A, B), C), "a & b < c"),
        (eq(A < B, C), "(a < b) == c"),
        (Un("neg", Bin("*", A, B)), "-(a * b)"),
        (Bin("*", Un("neg", A), Const(-2, "i64")), "-a * -2"),
        (Un("not", Bin("|", A, B)), "~(a | b)"),
        (Select(A < B, A, Cast("i32", B)), "where(a < b, a, i32(b))"),
        (Bin("min", A, Const(8, "i32")), "min(a, 8)"),
        (LaneReduce("max", (A, B), C), "max(c, over=(a, b))"),
    ],
)
def test_expression(e: Expr, said: str) -> None:
    assert text(e) == said


@pytest.mark.parametrize(
    ("e", "value"),
    [
        ((A + 7) // 8 * B, 14),
        (Bin("max", Bin("%", A, Const(5, "i64")), B - 9), 0),
        (Bin("&", A < C, Bin("<=", B, A)), True),
        (Bin("-", A, Bin("-", B, C)), 100 + 10 - 7),
    ],
)
def test_sizes_are_evaluated_by_python(e: Expr, value: int) -> None:
    assert eval(text(e), {}, {"a": 10, "b": 7, "c": 100}) == value
