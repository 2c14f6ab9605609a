"""The reader: every program that the package compiles prints, is read, and is the same program again.

The same means: the same text, the same nodes (named ones paired), and the same results of the interpreters.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops.matrices import KINDS, leaf, matrix, randn
from ops.places import INTERPRETER
from semantics import stages
from semantics.programs import CASES
from semantics.structures import PATTERNS
from sketches import test_flat_models, test_flat_products, test_stage_one

import tilewright as tw
from tilewright import driver
from tilewright.formats.bind import Spec, bind
from tilewright.ir import coord, flat, loops, stmt, tile
from tilewright.ir.expr import Bin, Buffer, Cast, Const, Expr, Select, Un, Var, maximum
from tilewright.ir.interp import run_coord, run_flat
from tilewright.ir.monoid import Monoid, monoids
from tilewright.ir.node import Node
from tilewright.ir.parse import parse
from tilewright.ir.text import text
from tilewright.lowering.flatten import lower_to_flat
from tilewright.lowering.position import lower_to_position
from tilewright.ops.backend import backend
from tilewright.ops.entry import entry
from tilewright.ops.library import run as call
from tilewright.ops.linear import _call as rows_call
from tilewright.support.errors import LanguageError

# --- the judge --------------------------------------------------------------------------------------


def again(p: Any) -> Any:
    """The program of a program's text; it must be the same."""
    said = text(p)
    made = parse(said)
    assert text(made) == said
    assert alike(p, made, {})
    return made


def alike(a: Any, b: Any, pairs: dict[Any, Any]) -> bool:
    """Whether two nodes are the same, each named node of one paired with one of the other."""
    if type(a) is not type(b):
        return False
    match a:
        case tuple():
            return len(a) == len(b) and all(map(lambda x, y: alike(x, y, pairs), a, b))
        case Const(value, d):
            return (type(value), repr(value), d) == (type(b.value), repr(b.value), b.dtype)
        case Monoid():
            return (a.name, a.dtypes) == (b.name, b.dtypes)
        case tile.Expand(inner, have):
            kept = [[d in x.have for d in x.want] for x in (a, b)]
            return kept[0] == kept[1] and have == b.have and alike(inner, b.a, pairs)
        case Var() | coord.Index():
            return pairs.setdefault(a, b) is b and a.dtype == b.dtype
        case Buffer():
            return pairs.setdefault(a, b) is b and shown(a) == shown(b)
        case tile.Program():
            held = dict(b.types)
            known = all(held[pairs[v]] == dims for v, dims in a.types if v in pairs)
            return known and fields_alike(a, b, pairs, ("types",))
        case Node():
            if isinstance(a, coord.Axis | coord.Tensor) and pairs.setdefault(a, b) is not b:
                return False
            return fields_alike(a, b, pairs, ("where",) if isinstance(a, coord.Assign) else ())
    return bool(a == b)


def fields_alike(a: Any, b: Any, pairs: dict[Any, Any], skip: tuple[str, ...] = ()) -> bool:
    names = [f.name for f in dataclasses.fields(a) if f.name not in skip]
    return all(alike(getattr(a, n), getattr(b, n), pairs) for n in names)


def shown(b: Buffer) -> tuple[Any, ...]:
    steps = None if b.strides is None else [str(e) for e in b.strides]
    return b.name, b.dtype, b.role, [str(e) for e in b.shape], steps


# --- operators, their gradients, formats ------------------------------------------------------------


def tensor(kind: str) -> tw.SparseTensor:
    made = KINDS[kind](matrix(6, 8, 0.35))
    return made if isinstance(made, tw.SparseTensor) else tw.SparseTensor.from_torch(made)


def product(kind: str, reduce: str = "sum", prepared: bool = False) -> Callable[[], None]:
    def go() -> None:
        a = tensor(kind)
        a = a.prepare() if prepared else a
        y = tw.spmm(a, leaf(randn(8, 3)), values=leaf(a.values), reduce=reduce)
        y.sum().backward()

    return go


def heads() -> None:
    a = tensor("tensor-coo")
    tw.spmm(a.with_values(leaf(randn(a.nnz, 2))), leaf(randn(8, 2, 3))).sum().backward()


def sampled(op: str) -> Callable[[], None]:
    def go() -> None:
        a = tensor("tensor")
        made = tw.sddmm(a.with_values(leaf(a.values)), leaf(randn(6, 3)), leaf(randn(8, 3)), op=op)
        made.values.sum().backward()

    return go


def rows() -> None:
    x, w = leaf(randn(6, 5)), leaf(randn(4, 5))  # as code: tw.linear leaves it to torch on a CPU
    call(*rows_call(x, w, torch.tensor([5, 0, 2]), None))[0].sum().backward()


def strided_rows() -> None:
    call(*rows_call(randn(6, 5), randn(5, 4).t(), torch.tensor([5, 0, 2]), None))


def attention() -> None:
    mask = tw.block_mask(torch.tensor([[1, 0], [0, 0], [1, 1]]), 4, (10, 7)).prepare()
    q, k, v = (leaf(randn(*s)) for s in ((2, 10, 3), (1, 7, 3), (1, 7, 2)))
    tw.attention(q, k, v, mask=mask, enable_gqa=True).sum().backward()


def einsum() -> None:
    a = tensor("tensor")
    tw.einsum("ij,jf,fg->ig", a, leaf(randn(8, 3)), leaf(randn(3, 2))).sum().backward()


@tw.program
def two_steps(a: Any, x: Any, c: Any, h: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    h[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))
    y[i, f] = maximum(tw.sigmoid(h[i, f]), tw.logsumexp(j, a[i, j] * x[j, f])) * c


FAMILIES: dict[str, Callable[[], Any]] = {
    **{f"spmm-{how}": product("tensor", how) for how in ("sum", "mean", "max", "min")},
    **{f"spmm-{kind}": product(kind) for kind in ("tensor-coo", "tensor-csc", "tensor-bsr")},
    "spmm-prepared": product("tensor", "max", prepared=True),
    "spmm-heads": heads,
    **{f"sddmm-{op}": sampled(op) for op in ("dot", "add", "sub", "mul", "div")},
    "rows": rows,
    "rows-strided": strided_rows,
    "attention": attention,
    "einsum": einsum,
    "program": lambda: two_steps(tensor("tensor"), randn(8, 3), 2.0),
}


@pytest.fixture
def compiled() -> Iterator[list[Any]]:
    """The programs that pass through the driver."""
    found: list[Any] = []
    keep = driver._Log.keep

    def kept(log: Any, stage: str, thing: Any) -> Any:
        found.append(thing)
        return keep(log, stage, thing)

    entry.cache_clear()
    with mock.patch.object(driver._Log, "keep", kept):
        yield found
    entry.cache_clear()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("where", ["c", pytest.param("triton", marks=INTERPRETER)])
def test_family(where: str, family: str, compiled: list[Any]) -> None:
    with backend(where):
        FAMILIES[family]()
    made = [again(p) for p in compiled if not isinstance(p, str)]
    stages_met = {type(p) for p in made}
    wanted = {coord.Program, loops.Program, flat.Program}
    assert stages_met == (wanted if where == "c" else wanted | {tile.Program})


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "bsc", "bcoo", "ragged"])
def test_format(format: str) -> None:
    block = (2, 4) if format in ("bsr", "bsc", "bcoo") else (1, 1)
    a = Spec(format, "f16", 2, block=block, index="i64")
    traced = weighted.trace()
    p = again(bind(traced, {"a": a, "x": Spec("dense", "f16", 1)}).program)
    again(lower_to_flat(again(lower_to_position(p))))


@tw.program
def weighted(a: Any, x: Any, e: Any) -> None:
    i, j = tw.axes("i j")
    e[i, j] = a[i, j] * x[j]


# --- results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", stages.STAGES)
@pytest.mark.parametrize("name", CASES)
def test_result(name: str, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read means what was printed."""
    made_at = stages.made_at
    with backend("c" if stage == "for-c" else "triton"):
        case = CASES[name](PATTERNS["mixed"], torch.float32, 3, "cpu")
        want = stages.run_stage(stage, *case.call)
        monkeypatch.setattr(stages, "made_at", lambda *given: again(made_at(*given)))
        got = stages.run_stage(stage, *case.call)
    assert got.tobytes() == want.tobytes()


def sketches() -> list[Any]:
    found = []
    for module in (test_flat_models, test_flat_products, test_stage_one):
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_"):
                marks = getattr(test, "pytestmark", [])
                for given in marks[0].args[1] if marks else [None]:
                    found.append(pytest.param(module, test, given, id=f"{name}-{len(found)}"))
    return found


@pytest.mark.parametrize(("module", "test", "given"), sketches())
def test_sketch(module: Any, test: Any, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sketches' own tests, over what was read."""
    for name, run in (("run_coord", run_coord), ("run_flat", run_flat)):
        if hasattr(module, name):
            redo = lambda p, *args, run=run, **more: run(again(p), *args, **more)
            monkeypatch.setattr(module, name, redo)
    test() if given is None else test(given)


# --- forms ------------------------------------------------------------------------------------------

FORMS = {
    "loops": """\
@loops
def f(at: index[i32[n]], x: f32[n, 2].strides(s, 1), y: out[f32[n]], n, s, c: scalar[f64]):
    for i in range(n):
        near = init(max[i64])
        p = find(i + 1, at[0:n])
        q = find(i, at[p:n], start=near)
        near = fold(max[i64], near, max(q, -1 - q))
        with where(p >= 0):
            y[p] = f32(x[p, 1] * c)
        if p < 0:
            pass
        else:
            if ~(p == 3):
                y[i] = -0.0""",
    "flat": """\
@flat(divisors={n: 16, m: 4}, order=(j, i), swizzle=8)
def f(x: f16[n], lists: out[i32[n]], counts: counter[i32[1]], y: out[f64[()]], n, m: size[i32]):
    for i in grid(n):
        for j in grid(1, m):
            top, total, acc = init(softmax_sum[f64])
            part = init(sum)
            whole = init(any)
            for r in lane(8, i32):
                s = scan(sum, x[r], along=r)
                most = max(f32(s), over=r)
                both = any((s < f16(2.0)) & (s != f16(-inf)), over=(r, i))
                at: i32 = append(lists[i], counts[0], r, where=both)
                append(lists[0], counts[0], i32(7), where=most < nan)
                top, total, acc = fold(softmax_sum[f64], (top, total, acc), f64(s), f64(0.5))
                part = fold(sum, part, f32(s) * 1e-30)
                whole = fold(any, whole, both)
            total = join(sum, total, part)
            for q in unroll(4):
                prefetch(x[minimum_ + q])
            if publish(sum, part, slot=i, nth=j, pieces=i64(m)):
                y[()] = neg(3.0) + cast(f64, 1) - -part""".replace("minimum_", "i"),
    "tile": """\
@tile(grid=(n + 7) // 8, dims={r: 8, f: 16})
def f(
    x: f16[n, n],
    y: out[f16[n, n]],
    done: counter[i32[1]],
    came: counter[i64[1]],
    count: out[i32[1]],
    part: work[f32[n]],
    n: size[i32],
):
    late: f32[r]
    pid = program_id()
    wide = program_id(i64)
    r = arange(r)
    f = arange(f, i64)
    acc: f32[r, f] = full([], 0.0, f32)
    t = load(x + (pid + 1) * n + r[:, None] + f[None, :], mask=(r < n)[:, None], fill=-inf)
    u = load(part + r, fresh=True)
    v = load(part, fill=1.0)
    w = load(x + r, mask=r < 3, fill=f32(1.0))
    for k in range(0, n, 4):
        acc = dot(t, trans(t), acc)
        more = dot(t, trans(t), f16)
    for q in unroll(2, i32):
        c = scan(sum, u, axis=0)
        m: i64 = max(c, axis=0)
    if pid == 0:
        store(y + r + f, acc, mask=r[:, None] < f[None, :], fresh=True)
    seen = arrive(done + 0)
    old: i64 = fetch_add(done + r, i32(1))
    mine = claim(came, count, i32(2))
    barrier()
    store(part + (r + 1), u + late)""",
    "coord": """\
@coord
def f(
    a: f32[n_i, n_j].on(i_b, j_b, ii).at(i_b * 4 + ii, j_b).stored(a_nnz, 4).perm(a_perm),
    b: f32[n_i, n_j].on(i, i_1),
    c: f32[n_i].values(c_data),
    d: f32[n_i].values(None),
    x: f16[n_j, n_f].strides(x_s, 1),
    lists: out[i32[n_i, n_j]],
    counts: out[i32[n_i]],
    y: out[f32[n_i, n_f]],
    z: out[f32[n_i]],
    scale: scalar[f32],
):
    a_indptr: index[i32[n_b + 1]]
    a_indices: index[i32[a_nnz]]
    a_perm: index[i64[a_nnz]]
    c_data: f64[n_i, 2]
    i_b = dense(n_b)
    j_b = sparse(under=i_b, indptr=a_indptr, indices=a_indices)
    ii = dense(4)
    i = dense(n_i)
    i_1 = dense(3, under=i, extent=variable, name="i")
    y[i, f], z[i] = softmax_sum(j, a[i, j] * scale, x[j, f])[0 + 1], max(j, maximum(a[i, j], 0.5))
    z[i] = sum[f64]((j, k), stored(a[i, j]) * stored(b[i, k], f64) * x[j, 0]) + f32(i)
    append(lists, counts, j, group=(i,), over=(j,), where=a[i, j] != 0.0)
    append(lists, counts, 1, group=(), over=(i, j), where=~(a[i, j] < 0.0))""".replace(
        "[0 + 1]", "[1]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("stage", FORMS)
def test_forms(stage: str) -> None:
    """Everything the grammar has, written by hand."""
    made = parse(FORMS[stage])
    assert text(made) == FORMS[stage]
    again(made)


def test_own_monoid() -> None:
    """A monoid that is not built in is given by its name."""
    mine = dataclasses.replace(monoids("f64")["sum"], name="mine")
    acc = Var("acc", "f64")
    p = flat.Program("f", (), (), (), (stmt.Init((acc,), mine),))
    assert parse(text(p), {"mine": mine}).body[0].monoid is mine  # type: ignore[union-attr]
    with pytest.raises(LanguageError, match="there is no monoid mine"):
        parse(text(p))


# --- expressions ------------------------------------------------------------------------------------

NAMES = {n: Var(n, d) for n, d in (("i", "i64"), ("k", "i32"), ("u", "f32"), ("v", "f64"))}
NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=64),
    st.sampled_from([math.inf, -math.inf, math.nan, 0.0, -0.0]),
)
DTYPE = st.sampled_from(["f64", "f32", "f16", "bf16", "i64", "i32", "b1"])
LEAVES = st.one_of(st.builds(Const, NUMBERS, DTYPE), st.sampled_from(sorted(NAMES)).map(NAMES.get))
OPERATORS = "+ - * / // % min max == != < <= > >= & |".split()


def deeper(inner: Any) -> Any:
    return st.one_of(
        st.builds(Bin, st.sampled_from(OPERATORS), inner, inner),
        st.builds(Un, st.sampled_from(["neg", "not", "exp", "relu"]), inner),
        st.builds(Cast, DTYPE, inner),
        st.builds(Select, inner, inner, inner),
    )


@settings(max_examples=300)
@given(st.recursive(LEAVES, deeper, max_leaves=12))
def test_any_expression(e: Expr) -> None:
    """Precedence, casts, signs, infinities: what is written is what was there."""
    y = Buffer("y", "f32", (Const(1, "i64"),), "out")
    body = (stmt.Store(y, (Const(0, "i64"),), e),)
    again(flat.Program("f", (y,), (NAMES["i"], NAMES["k"]), (NAMES["u"], NAMES["v"]), body))


# --- mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("y[i] = (1.0", "never closed"),
        ("y[i] = k", "nothing sets k before it is used"),
        ("z[i] = 1.0", "there is no buffer z"),
        ("y[i] = sinh(1.0)", r"sinh\(...\) is not known here"),
        ("y[i] = 0 < i < 3", "not an expression of this stage"),
        ("y[i] = where(i, 1.0)", "has other arguments"),
        ("y[i] = i32(1, 2)", "has other arguments"),
        ("y[i] = 'a'", "not an expression of this stage"),
        ("acc = init(total)", "there is no monoid total"),
        ("acc = init(mean)", "mean has 2 members"),
        ("acc = init(sum[f31])", "f31 is not a dtype"),
        ("for p in rows(n): pass", "rows is not a kind of loop"),
        ("for p in serial(0, n, 2): pass", "has other arguments"),
        ("for p in serial(n, step=2): pass", "step= is not known here"),
        ("while True: pass", "not a statement of the stage"),
        ("i: i32 = 3", "i is i64 already"),
        ("y[i] = median(1.0, over=i)", "median does not reduce"),
        ("y[i] = sum(1.0, over=3)", "`3` is not a variable"),
        ("y = append(y, y[0], 1, where=True)", "`y` is not an element"),
    ],
)
def test_mistake(line: str, why: str) -> None:
    said = f"@flat\ndef f(y: out[f32[n]], n):\n    for i in grid(n):\n        {line}\n"
    with pytest.raises(LanguageError, match=why) as caught:
        parse(said, place="03_flat.py")
    assert f"in: 03_flat.py, line 4: {line}" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "not one program"),
        ("x = 1", "not one program"),
        ("def f(n): pass", "not one program"),
        ("@fast\ndef f(n): pass", "@fast is not a stage"),
        ("@flat(grid=3)\ndef f(n): pass", "grid= is not known here"),
        ("@flat(divisors=3)\ndef f(n): pass", "not a table"),
        ("@flat(swizzle=n)\ndef f(n): pass", "not an integer"),
        ("@flat\ndef f(y: f32): pass", "`f32` is not a type"),
        ("@flat\ndef f(y: inside[f32[n]]): pass", "neither a role nor a dtype"),
        ("@flat\ndef f(y: f32[n].on(i)): pass", r"\.on\(...\) is not known here"),
        ("@tile(grid=n)\ndef f(n): pass", "dims= is missing"),
        ("@tile(grid=n, dims={r: 8})\ndef f(n):\n    f = arange(f)", "f is not a dimension"),
        ("@tile(grid=n, dims={r: 8})\ndef f(n):\n    f = n[:]", "`n` has 0 dims"),
        ("@coord\ndef f(n): pass", "n has no type"),
        ("@coord\ndef f(a: f32[n].on(i)): pass", "there is no axis i"),
        ("@coord\ndef f(a: f32[n]):\n    i = dense(n, indptr=p)", "there is no array p"),
        ("@coord\ndef f(a: f32[n]):\n    a = 3", "cannot be assigned"),
    ],
)
def test_mistake_above(source: str, why: str) -> None:
    with pytest.raises(LanguageError, match=why):
        parse(source)
