"""Trees of two dimensions: against the plain loop, and every format to every other."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from formats import reference
from formats.patterns import tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree

from tilewright.formats import SparseTensor, Structure, Tree, gallery, layout
from tilewright.formats.entries import limit
from tilewright.support.errors import FormatError

LISTS = ("dcsr", "ell", "dell", "padded.3", "dpadded.3", "csf", "csf.2.dense")
SLOTS = ("dbsr.2.3", "srbcrs.3.2", "dia", "bitmap")
TREES = (*LISTS, *SLOTS)
OTHERS = ("csr", "csc", "coo", "block_mask", "bsr")
QUICK = settings(max_examples=60)
KINDS = ("mixed", "empty", "giant", "duplicates", "two of four")


def matrix(
    kind: str, shape: tuple[int, int], dtype: torch.dtype, trailing: tuple[int, ...], seed: int
) -> SparseTensor:
    """Entries in no order, with exact values; "two of four" fits two_four, duplicates and all."""
    make = torch.Generator().manual_seed(seed)
    n, m = shape
    count = 0 if not n * m or kind == "empty" else 2 * m if kind == "giant" else n * m // 2 + 1
    rows = torch.randint(max(n, 1), (count,), generator=make)
    cols = torch.randint(max(m, 1), (count,), generator=make)
    if kind == "giant":
        rows = torch.full_like(rows, n // 2)
    if kind == "duplicates":
        rows, cols = rows // 2, cols // 2
    if kind == "two of four":
        cols = (cols // 4 * 4 + 2 * (cols % 2)).clamp_(max=max(m - 1, 0))
    values = torch.randint(-9, 9, (count, *trailing), generator=make).double()
    return SparseTensor.from_coo(rows.to(dtype), cols.to(dtype), values, shape)


def drawn(*kinds: str) -> st.SearchStrategy[SparseTensor]:
    return st.builds(
        matrix,
        st.sampled_from(kinds or KINDS),
        st.tuples(st.integers(0, 9), st.integers(0, 9)),
        st.sampled_from((torch.int32, torch.int64)),
        st.sampled_from(((), (2,))),
        st.integers(0, 99),
    )


@QUICK
@given(drawn(), st.sampled_from(TREES))
def test_the_plain_loop(a: SparseTensor, name: str) -> None:
    made = a.to_format(name)
    expected = a.to_dense()
    assert torch.equal(reference.dense(made), expected)
    assert torch.equal(made.to_dense(), expected)
    assert made.structure.index_dtype == a.structure.index_dtype


@QUICK
@given(drawn("two of four", "empty"))
def test_the_plain_loop_of_two_four(a: SparseTensor) -> None:
    made = a.to_format("two_four")
    assert torch.equal(reference.dense(made), a.to_dense())
    assert torch.equal(made.to_format("csr").to_dense(), a.to_dense())


@settings(max_examples=200)
@given(drawn(), st.sampled_from((*TREES, *OTHERS)), st.sampled_from((*TREES, *OTHERS)))
def test_every_pair(a: SparseTensor, first: str, second: str) -> None:
    if "block_mask" in (first, second):
        a = a.with_values(None)
    expected, block = a.to_dense(), (1, 1)
    there = a.to_format(first, block if first in ("bsr", "block_mask") else None)
    back = there.to_format(second, block if second in ("bsr", "block_mask") else None)
    if "block_mask" in (first, second):  # what is stored is kept, zeros inside of blocks too
        kept = there.with_values(None).to_dense() != 0
        assert torch.equal(back.to_dense() != 0, kept if second == "block_mask" else expected != 0)
    else:
        assert torch.equal(back.to_dense(), expected)
    assert back.format.partition(".")[0] == second.partition(".")[0]


@pytest.mark.parametrize("first", (*TREES, *OTHERS, "two_four"))
@pytest.mark.parametrize("second", (*TREES, *OTHERS[:3], "bsr", "two_four"))
def test_every_pair_once(first: str, second: str) -> None:
    a = matrix("two of four", (6, 8), torch.int32, (), 3)
    a = a.with_values(None) if first == "block_mask" else a
    block = (2, 2) if first != "block_mask" else (1, 1)
    there = a.to_format(first, block if first in ("bsr", "block_mask") else None)
    if second == "two_four" and first not in (*LISTS, *OTHERS[:4], "bitmap", "two_four"):
        return  # zeros inside of blocks are entries too: more than two
    back = there.to_format(second, (2, 2) if second == "bsr" else None)
    expected = a.to_dense() if first != "block_mask" else (a.to_dense() != 0).float()
    assert torch.equal(back.to_dense(), expected)


@QUICK
@given(drawn(), st.lists(st.sampled_from((*LISTS, "csr", "coo", "csc")), min_size=1, max_size=4))
def test_lists_keep_the_values(a: SparseTensor, steps: list[str]) -> None:
    made = a
    for step in steps:
        made = made.to_format(step)
        assert made.values is a.values and made.nnz == a.nnz
    fresh = a.values * 2 + 1
    assert torch.equal(made.with_values(fresh).to_dense(), a.with_values(fresh).to_dense())


@QUICK
@given(drawn(), st.sampled_from(SLOTS), st.sampled_from((*LISTS, "csc", "coo")))
def test_new_entries_flow_into_slots(a: SparseTensor, name: str, source: str) -> None:
    made = a.to_format(source).to_format(name)
    fresh = a.values * 2 + 1
    assert torch.equal(made.with_entries(fresh).to_dense(), a.with_values(fresh).to_dense())


@QUICK
@given(drawn(), st.sampled_from(TREES))
def test_csr_leads_to_flattened_values(a: SparseTensor, name: str) -> None:
    made = a.to_format(name)
    s = made.structure
    csr, flat = s.as_csr(), made.values.flatten(0, len(s.values_shape) - 1)
    assert s.as_csr() is csr
    held = flat if csr.perm is None else flat.index_select(0, csr.perm)
    again = Structure("csr", a.shape, csr.indptr, csr.indices)
    assert torch.equal(SparseTensor(again, held).to_dense(), a.to_dense())
    coords, perm = s.as_coordinates()
    held = flat if perm is None else flat.index_select(0, perm)
    assert torch.equal(SparseTensor.from_coo(*coords, held, a.shape).to_dense(), a.to_dense())


@QUICK
@given(drawn(), st.sampled_from(("csr", "csc", "coo", "bsr")))
def test_coordinates_of_structures(a: SparseTensor, name: str) -> None:
    made = a.to_format(name, (1, 1) if name == "bsr" else None)
    coords, perm = made.structure.as_coordinates()
    flat = made.values.flatten(0, len(made.structure.values_shape) - 1)
    held = flat if perm is None else flat.index_select(0, perm)
    assert torch.equal(SparseTensor.from_coo(*coords, held, a.shape).to_dense(), a.to_dense())


@QUICK
@given(drawn(), st.sampled_from(TREES))
def test_arrays_make_the_same_tensor(a: SparseTensor, name: str) -> None:
    made = a.to_format(name)
    arrays = made.structure.arrays
    again = SparseTensor.from_arrays(made.format, a.shape, made.stored_values(), **arrays)
    assert torch.equal(again.to_dense(), a.to_dense())
    assert torch.equal(again.to_format("csr").to_dense(), a.to_dense())
    if name in LISTS:
        assert again.nnz == a.nnz


@QUICK
@given(drawn(), st.sampled_from(TREES))
def test_transpose(a: SparseTensor, name: str) -> None:
    assert torch.equal(a.to_format(name).T.to_dense(), a.to_dense().transpose(0, 1))
    assert a.to_format(name).prepare().structure.transposed.format == "csr"


@pytest.mark.parametrize("first", (*TREES, "two_four"))
@pytest.mark.parametrize("second", (*LISTS, "bitmap", "csr", "coo"))
def test_what_is_prepared_converts_too(first: str, second: str) -> None:
    a = matrix("two of four", (5, 8), torch.int64, (), 1)
    made = a.to_format(first).prepare().to_format(second)
    assert torch.equal(made.to_dense(), a.to_dense())


@pytest.mark.parametrize("name", (*TREES, "two_four"))
def test_ones(name: str) -> None:
    a = matrix("two of four", (5, 8), torch.int64, (), 1).with_values(None)
    assert torch.equal(a.to_format(name).to_dense(), a.to_dense())
    made = a.to_format(name).with_values(None)
    assert made.to_dense().count_nonzero() >= a.to_dense().count_nonzero()
    assert torch.equal(made.to_format("csr").to_dense(), made.to_dense())


@pytest.mark.parametrize("name", (*TREES, "two_four"))
def test_gradients(name: str) -> None:
    a = matrix("two of four", (4, 6), torch.int64, (), 2)

    def f(v: torch.Tensor) -> torch.Tensor:
        made = a.with_values(v).to_format(name)
        return made.to_dense() ** 2 + made.to_format("csc").to_dense()

    assert torch.autograd.gradcheck(f, a.values.requires_grad_())


@pytest.mark.parametrize("name", (*TREES, "two_four"))
def test_pytree_copies_and_devices(name: str) -> None:
    a = matrix("two of four", (4, 6), torch.int32, (), 2).to_format(name)
    leaves, spec = _pytree.tree_flatten(a)
    made = _pytree.tree_unflatten(leaves, spec)
    assert torch.equal(made.to_dense(), a.to_dense()) and made.nnz == a.nnz
    assert _pytree.treespec_loads(_pytree.treespec_dumps(spec)) == spec
    for again in (copy.deepcopy(a.structure), pickle.loads(pickle.dumps(a.structure))):
        assert torch.equal(SparseTensor(again, a.values).to_dense(), a.to_dense())
    moved = a.prepare().to("meta")
    assert moved.device.type == "meta" and moved.structure.csr.device.type == "meta"
    assert a.to("cpu").structure is a.structure


def test_what_is_not_there_may_hold_anything() -> None:
    at = torch.tensor([1, -1, -1, 0])
    values = torch.tensor([1.0, float("nan"), float("inf"), 2.0])
    made = SparseTensor.from_arrays("ell.2", (2, 3), values, indices1=at)
    assert made.nnz == 2 and made.to_dense().tolist() == [[0, 1, 0], [2, 0, 0]]
    assert made.to_format("csr").values.tolist() == [1, 2]


def test_parameters_are_chosen() -> None:
    a = tensor("giant", (5, 7))
    longest = int(a.to_format("csr").structure.indptr.diff().max())
    assert a.to_format("ell").format == f"ell.{longest}"
    assert a.to_format("ell.20").structure.positions == 100
    assert SparseTensor.from_dense(torch.eye(4)).to_format("dia").format == "dia.1"
    assert SparseTensor.from_dense(torch.eye(4)).to_format("dia.3").to_dense().sum() == 4
    assert a.to_format("dbsr", (2, 2)).format == "dbsr.2.2"
    assert a.to_format("ell").to_format("ell").structure.format == f"ell.{longest}"


def test_ragged_of_a_matrix_without_gaps() -> None:
    rows, cols = torch.tensor([2, 0, 2, 0]), torch.tensor([1, 0, 0, 1])
    a = SparseTensor.from_coo(rows, cols, torch.arange(4.0), (3, 4))
    for name in ("ragged", "ragged.2"):
        made = a.to_format(name)
        assert made.format == name and made.values is a.values
        assert torch.equal(made.to_dense(), a.to_dense())
        assert torch.equal(made.to_format("dcsr").to_dense(), a.to_dense())


def test_levels_and_names() -> None:
    assert layout("srbcrs.8.4").levels[2].length == 8
    assert layout("two_four").levels[2].base == 4
    assert [n for d, v in enumerate(layout("csf.3").levels) for n in v.stored(d)] == [
        *("indices0", "indptr1", "indices1", "indptr2", "indices2")
    ]
    assert layout("csf.3.dense").levels[0].stored(0) == ()
    assert str(layout("dia.2")) == (
        "dia.2: dim 0 dense fixed > dim 1 sparse fixed(2) relative to dim 0 shared"
    )


@pytest.mark.parametrize("name", ["dcsr", "csf.2", "dbsr.4.4", "dbsr.1.2"])
@pytest.mark.parametrize("n", [2**20, 2**33, 2**40])
def test_few_entries_in_very_many_rows(name: str, n: int) -> None:
    rows, cols = torch.tensor([0, n - 1, 5]), torch.tensor([n - 1, 3, 5])
    a = SparseTensor.from_coo(rows, cols, torch.arange(1.0, 4.0), (n, n))
    made = a.to_format(name).to_format("coo")
    at = zip(made.structure.rows.tolist(), made.structure.indices.tolist(), strict=True)
    found = {k: v for k, v in zip(at, made.stored_values().tolist(), strict=True) if v}
    assert found == {(0, n - 1): 1, (n - 1, 3): 2, (5, 5): 3}


def test_pictures() -> None:
    told = gallery()
    assert "24 places for 10 entries: 58.3 % padding" in told["ell.3"]
    assert "  dim 1 sparse fixed(3) padded: indices1 192 B" in told["ell.3"]
    assert told["ell.3"].splitlines()[1:9] == told["csr"].splitlines()[1:9]
    assert "SparseTensor(bucket.2, 3 x 4 x 6, nnz 5, float32, cpu)" in told["bucket.2"]
    assert {"ragged.3", "dia.3", "two_four", "bitmap"} <= set(told)
    assert "no rows" in str(SparseTensor.from_dense(torch.zeros(0, 3), format="ell"))


I = torch.tensor
EYE = SparseTensor.from_dense(torch.eye(3))


def one(n: int, m: int) -> SparseTensor:
    return SparseTensor.from_coo(I([0]), I([0]), None, (n, m))


def wide_row() -> SparseTensor:
    return SparseTensor.from_coo(torch.zeros(3000).long(), torch.arange(3000), None, (3000, 3000))


def ell(indices: object, **more: object) -> SparseTensor:
    return SparseTensor.from_arrays("ell.1", (2, 3), indices1=indices, **more)


def strips(indptr: object, indices: object) -> SparseTensor:
    return SparseTensor.from_arrays("padded.2", (2, 3), indptr1=indptr, indices1=indices)


@pytest.mark.parametrize(
    ("entry", "said", "make"),
    [
        ("too-large", "would store 9000000 places for 3000", lambda: wide_row().to_format("ell")),
        ("too-large", "use csr", lambda: wide_row().to_format("dia")),
        ("too-large", "4000000 places for 1", lambda: one(2000, 2000).to_format("bitmap")),
        ("too-large", "two_four", lambda: one(2000, 2000).to_format("two_four")),
        ("too-large", "dbsr", lambda: one(4000, 4000).to_format("dbsr.4000.4000")),
        ("too-large", "srbcrs", lambda: one(2**24, 1).to_format("srbcrs.4000000.1")),
        ("too-large", "padded", lambda: one(4, 4).to_format("padded.4000000")),
        ("argument", "int32 pointers", lambda: limit("x", 2**31, 2**30, "csr", torch.int32)),
        ("argument", "a row of 3000", lambda: wide_row().to_format("ell.8")),
        ("argument", "3 diagonals", lambda: banded().to_format("dia.2")),
        ("argument", "4 entries among four", lambda: full().to_format("two_four")),
        ("argument", "gaps", lambda: banded().to_format("ragged")),
        ("argument", "block = None", lambda: EYE.to_format("dbsr")),
        ("argument", "format = 'ell.2.3'", lambda: EYE.to_format("ell.2.3")),
        ("argument", "format = 'ell.x'", lambda: EYE.to_format("ell.x")),
        ("argument", "format = 'padded.0'", lambda: EYE.to_format("padded.0")),
        ("argument", "name = 'bucket.2'", lambda: EYE.to_format("bucket.2")),
        ("argument", "name = 'csf.3'", lambda: EYE.to_format("csf.3")),
        ("argument", "indices1 = NoneType", lambda: SparseTensor.from_arrays("ell.1", (2, 3))),
        ("argument", "mask1", lambda: ell(I([0, 1]), mask1=I([0]))),
        ("argument", "shape = (2,)", lambda: Tree("ell.1", (2,), {"indices1": I([0, 0])})),
        ("argument", "indptr1", lambda: SparseTensor.from_arrays("csr", (1, 1), indptr1=I([0]))),
        ("shape", "indices1 has shape (3,)", lambda: ell(I([0, 1, 2]))),
        ("index-range", "indices1 holds 3", lambda: ell(I([0, 3]))),
        ("index-range", "indices1 holds -2", lambda: ell(I([-2, 0]))),
        ("index-dtype", "torch.float32", lambda: ell(I([0.0, 1.0]))),
        ("dtype", "indices1 has dtype", lambda: strips(I([0, 0, 2]).int(), I([0, 1]))),
        ("shape", "indptr1 has shape", lambda: strips(I([0, 2]), I([0, 1]))),
        ("index-pointer", "multiples of 2", lambda: strips(I([0, 1, 2]), I([0, 1]))),
        ("index-pointer", "it ends at 2", lambda: strips(I([0, 0, 2]), I([0, 1, 2, 0]))),
        ("dtype", "mask1 has dtype", lambda: bits(I([0, 1]))),
        ("shape", "mask1 has shape", lambda: bits(I([0, 1, 1]).byte())),
        ("value-count", "values has 3", lambda: ell(I([0, 1]), values=torch.ones(3))),
        ("shape", "(1, 2, 2, ...)", lambda: blocks().with_values(torch.ones(1, 2, 3))),
        ("value-count", "values has 9", lambda: blocks().with_entries(torch.ones(9))),
        ("argument", "structure", lambda: EYE.to_format("ell").with_entries(torch.ones(3))),
    ],
)
def test_errors(entry: str, said: str, make: object) -> None:
    with pytest.raises(FormatError) as caught:
        make()
    assert caught.value.entry == entry
    assert said in str(caught.value)


def banded() -> SparseTensor:
    return SparseTensor.from_dense(torch.eye(3) + torch.ones(3, 3).tril(1).triu(-1))


def full() -> SparseTensor:
    return SparseTensor.from_dense(torch.ones(4, 4))


def bits(mask: torch.Tensor) -> SparseTensor:
    return SparseTensor.from_arrays("bitmap", (1, 2), mask1=mask)


def blocks() -> SparseTensor:
    return one(2, 2).to_format("dbsr.2.2")


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3, 4)])
@pytest.mark.parametrize("name", TREES)
def test_matrices_of_nothing_keep_their_graph(name: str, shape: tuple[int, int]) -> None:
    """A loss over an empty matrix has gradients, as it has in csr."""
    a = matrix("empty", shape, torch.int64, (), 0).to_format(name)
    v = a.explicit_values().detach().requires_grad_()
    a.with_values(v).to_dense().sum().backward()
    assert v.grad is not None
