"""Every monoid of the language and of users: all stages, C and Triton, empty rows, ties, NaN, definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ops.matrices import KINDS, close, matrix, randn
from ops.monoids import (
    BUILT_IN,
    DENSE,
    F64,
    INF,
    NAN,
    ROWS,
    WORDS,
    check,
    dense_program,
    expected,
    horner,
    reference,
    rows_of,
)
from ops.places import Place
from semantics.programs import user_call
from semantics.stages import STAGES, run_stage
from semantics.structures import PATTERNS

import tilewright as tw
from tilewright.ops.backend import backend

# --- results --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "tensor-coo", "tensor-csc"])
@pytest.mark.parametrize("word", WORDS)
def test_rows(word: str, kind: str, where: Place) -> None:
    """Row 2 is empty."""
    dense, x = matrix(device=where.device), randn(12, 5, device=where.device)
    check(ROWS[word](KINDS[kind](dense), x), expected(word, dense, x), word)


@pytest.mark.parametrize("word", WORDS)
def test_blocks(word: str, where: Place) -> None:
    """Every number of a stored block is an entry, zeros too."""
    dense, x = matrix(device=where.device), randn(12, 5, device=where.device)
    held = (dense != 0).view(5, 2, 3, 4).any(3).any(1).cpu()
    held = held.repeat_interleave(2, 0).repeat_interleave(4, 1)
    want = reference(word, dense.cpu()[:, :, None] * x.cpu(), held)
    check(ROWS[word](KINDS["tensor-bsr"](dense), x), want, word)


@pytest.mark.parametrize("width", [1, 33, 128])
@pytest.mark.parametrize("word", WORDS)
def test_width(word: str, width: int, where: Place) -> None:
    dense, x = matrix(5, 6, 0.5, device=where.device), randn(6, width, device=where.device)
    check(ROWS[word](tw.SparseTensor.from_dense(dense), x), expected(word, dense, x), word)


@pytest.mark.parametrize("dtype", [F64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("word", WORDS)
def test_dtype(word: str, dtype: torch.dtype, where: Place) -> None:
    dense = matrix(6, 8, dtype=dtype, device=where.device)
    x = randn(8, 5, dtype=dtype, device=where.device)
    got = ROWS[word](tw.SparseTensor.from_dense(dense), x)
    assert got.dtype == (torch.int64 if word.startswith("arg") else dtype)
    check(got, expected(word, dense, x), word)


@pytest.mark.parametrize("word", ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integers(word: str, dtype: torch.dtype, where: Place) -> None:
    held = matrix(6, 8, 0.4, device=where.device) != 0
    dense = torch.where(held, torch.arange(48, device=where.device).view(6, 8) % 7 - 8, 0)
    x = torch.arange(40, device=where.device).view(8, 5) % 5 - 2
    got = ROWS[word](tw.SparseTensor.from_dense(dense.to(dtype)), x.to(dtype)).cpu()
    assert got.dtype == (torch.int64 if word.startswith("arg") else dtype)
    empty = {"max": torch.iinfo(dtype).min, "min": torch.iinfo(dtype).max}
    want = expected(word, dense, x)
    for i in (~held).all(1).nonzero()[:, 0].tolist():
        assert (got[i] == empty.get(word, want[i])).all()
    full = held.any(1).cpu()
    assert torch.equal(got[full].double(), want[full])


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (40, 128), (3, 300)], ids=str)
@pytest.mark.parametrize("word", WORDS)
def test_dense(word: str, shape: tuple[int, int], where: Place) -> None:
    if where.slow and shape == (3, 300) and word in ("prod", "max", "min"):
        pytest.skip("Triton's interpreter reduces element by element")
    x = randn(*shape, device=where.device)
    want = reference(word, x.cpu()[:, :, None], torch.ones(shape))[:, 0]
    check(DENSE[word](x), want, word)


@pytest.mark.parametrize("word", WORDS)
def test_pieces(word: str, tiled: Place) -> None:
    """A work list cuts the long row in pieces, spread over lanes; without a lane form rows stay whole."""
    dense = torch.zeros(100, 400, device=tiled.device)
    dense[1] = randn(400, device=tiled.device)
    dense[4, 3:9] = 1.0
    A = tw.SparseTensor.from_dense(dense)
    A.prepare()
    x = randn(400, 3, device=tiled.device)
    kernels = ROWS[word].kernels(A, x)
    whole = word in ("variance", "spread")
    assert any("publish" in k.stages["scheduled"] for k in kernels) != whole
    check(ROWS[word](A, x), expected(word, dense, x), word)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("word", WORDS)
def test_stage(word: str, stage: str) -> None:
    p = PATTERNS["giant"]
    a = p.tensor()
    a = a.with_values(randn(a.nnz))
    x = randn(13, 3, seed=2)
    x[7, 1], x[0, 0], x[10, 2] = NAN, INF, -INF
    rows, cols = p.entries()
    want = torch.zeros(4, 3, dtype=F64)
    for i in range(4):
        at = np.flatnonzero(rows == i)
        terms = (a.values[at, None] * x[cols[at]])[None]
        made = reference(word, terms, torch.ones(1, len(at)))[0]
        if word.startswith(
            "arg"
        ):  # places among the entries -> columns, the smallest of equal ones
            for f in range(3):
                v = terms[0, :, f]
                best = v[int(made[f])] if len(at) else 0
                same = v.isnan() if len(at) and best.isnan() else v == best
                keys = torch.from_numpy(cols[at])[same]
                made[f] = keys.min() if len(at) else -1
        want[i] = made
    if word == "variance":  # one infinite number: by this update inf, by torch's NaN
        want[3, 2] = INF
    with backend("c" if stage == "for-c" else "triton"):
        got = run_stage(stage, *user_call(ROWS[word].trace(), a, {"x": x}), [])
    check(torch.from_numpy(np.asarray(got, np.float32)).view(4, 3), want, word)


# --- what numbers may do --------------------------------------------------------------------------------


@pytest.mark.parametrize("word", BUILT_IN)
@pytest.mark.parametrize("width", [1, 3])
def test_nan_and_inf(word: str, width: int, where: Place) -> None:
    """In a row of its own each: NaN first, last, alone; infinities of both signs; only -inf."""
    v = rows_of(
        [NAN, 1, 2, 3], [1, 2, 3, NAN], [NAN] * 4, [INF, 1, -INF, 2], [-INF] * 4, [1, NAN, 9, INF]
    ).to(where.device)
    rows = torch.arange(6, device=where.device).repeat_interleave(4)
    cols = torch.arange(4, device=where.device).repeat(6)
    A = tw.SparseTensor.from_coo(rows, cols, v.flatten(), (6, 4)).to_format("csr")
    x = torch.ones(4, width, device=where.device)
    want = reference(word, v.cpu()[:, :, None].expand(6, 4, width), torch.ones(6, 4))
    check(ROWS[word](A, x), want, word)
    check(DENSE[word](v), want[:, 0], word)


@pytest.mark.parametrize("word,want", [("argmax", [1, 0, 2]), ("argmin", [0, 0, 0])])
def test_ties(word: str, want: list[int], where: Place) -> None:
    x = rows_of([1, 5, 5, 5], [2, 2, 2, 2], [0, 1, 3, 3]).to(where.device)
    assert DENSE[word](x).tolist() == want


def test_ties_take_the_smallest_index(where: Place) -> None:
    """Whatever the order in which entries are stored."""
    cols = torch.tensor([3, 1, 2], device=where.device)
    rows, v = torch.zeros_like(cols), torch.ones(3, device=where.device)
    A = tw.SparseTensor.from_coo(rows, cols, v, (1, 4))
    assert ROWS["argmax"](A, torch.ones(4, 1, device=where.device)).tolist() == [[1]]


def test_entries_in_order(where: Place) -> None:
    """A monoid that does not commute sees the entries as they are stored."""

    def fn(a: Any, x: Any, y: Any) -> None:
        i, j, f = tw.axes("i j f")
        y[i, f] = horner(j, a[i, j], x[j, f])

    fn.__name__ = "rows_horner"
    dense, x = matrix(device=where.device), randn(12, 5, device=where.device)
    A = tw.SparseTensor.from_dense(dense)
    A.prepare()
    got = tw.program(fn)(A, x)
    want = torch.zeros(10, 5, dtype=F64)
    for i, j in dense.cpu().nonzero().tolist():
        want[i] = want[i] * dense[i, j].item() + x[j].cpu().double()
    check(got, want, "horner")


def test_conditions(where: Place) -> None:
    """Comparisons and their conjunctions bind as written."""

    @tw.program
    def some(x: Any, lo: Any, hi: Any, y: Any) -> None:
        i, j = tw.axes("i j")
        y[i] = tw.any(j, (x[i, j] > lo) & (x[i, j] < hi) | tw.equal(x[i, j], 9.0))

    x = rows_of([0, 1, 2], [5, 6, 7], [0, 9, 0]).to(where.device)
    assert some(x, 0.5, 1.5).tolist() == [1, 0, 1]


# --- definitions ----------------------------------------------------------------------------------------


def define(name: str = "trial", **changed: Any) -> Any:
    given: dict[str, Any] = {
        "state": "a",
        "identity": 0.0,
        "lift": lambda x: x,
        "combine": lambda a, b: a + b,
    }
    return tw.monoid(name, **{**given, **changed})


@pytest.mark.parametrize(
    "changed,text",
    [
        ({"combine": lambda a, b: a - b}, "not neutral on the left"),
        ({"combine": lambda a, b: a + 0.5 * b}, "not neutral on the left"),
        ({"combine": lambda a, b: a + b + a * a * b * b}, "not associative"),
        ({"identity": 1.0}, "not neutral"),
        ({"identity": (0.0, 0.0)}, "2 identities for 1 members"),
        ({"lift": lambda x: (x, x)}, "lift gives 2 results"),
        ({"combine": lambda a: a}, "combine cannot be traced"),
        ({"combine": lambda a, b: a if a > b else b}, "combine cannot be traced"),
        ({"lane": ("median",)}, "lane="),
        ({"name": "max"}, "built-in"),
        ({"backward": lambda x, result, grad: (x, x)}, "backward gives 2 results"),
    ],
    ids=range(11),
)
def test_refused(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(tw.TilewrightError, match=text) as why:
        define(**changed)
    assert why.value.entry == "monoid"


def test_wrong_number_of_arguments() -> None:
    with pytest.raises(tw.TilewrightError, match="2 arguments"):
        define()(tw.axes("j"), 1.0, 2.0)


def test_defined_again() -> None:
    """The same definition is the same monoid; a changed one is another, and old programs keep theirs."""
    one, same = define("again"), define("again")
    other = define("again", lift=lambda x: x * 2.0)
    assert one.name == same.name != other.name
    x = torch.ones(1, 3)
    old, new = dense_program("again", one), dense_program("again", other)
    assert (old(x).item(), new(x).item(), old(x).item()) == (3, 6, 3)


def test_two_results(where: Place) -> None:
    both = define(
        "both",
        state="low high",
        identity=(INF, -INF),
        lift=lambda x: (x, x),
        combine=lambda a, b, c, d: (tw.minimum(a, c), tw.maximum(b, d)),
        finalise=lambda a, b: (a, b),
    )

    @tw.program
    def ends(x: Any, low: Any, high: Any) -> None:
        i, j = tw.axes("i j")
        tw.outputs(low[i], high[i], value=both.parts(j, x[i, j]))

    x = randn(4, 9, device=where.device)
    low, high = ends(x)
    close(low, x.amin(1))
    close(high, x.amax(1))


def test_counting_in_integers(where: Place) -> None:
    share = define(
        "share",
        state="hits:i64 n:i64",
        identity=(0, 0),
        lift=lambda x: (tw.where(x > 0.0, 1, 0), 1),
        combine=lambda a, n, b, m: (a + b, n + m),
        finalise=lambda a, n: a / tw.maximum(n, 1),
        lane=("sum", "sum"),
    )
    x = randn(4, 9, device=where.device)
    close(dense_program("share", share)(x), (x > 0).float().mean(1))
