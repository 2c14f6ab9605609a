"""Trees of three and more dimensions: csf, buckets, ragged of any depth."""

from __future__ import annotations

import pytest
import torch
from formats import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.formats import SparseTensor, buckets
from tilewright.support.errors import FormatError

QUICK = settings(max_examples=60)
I = torch.tensor


def entries(
    shape: tuple[int, ...], count: int, dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Coordinates, exact values, and the dense tensor by a plain loop."""
    make = torch.Generator().manual_seed(seed)
    count = count if min(shape) else 0
    drawn = [torch.randint(max(n, 1), (count,), generator=make) for n in shape]
    coords = torch.stack(drawn).to(dtype)
    values = torch.randint(-9, 9, (count, 2), generator=make).double()
    dense = torch.zeros(*shape, 2, dtype=torch.float64)
    for at, v in zip(coords.T.tolist(), values, strict=True):
        dense[tuple(at)] += v
    return coords, values, dense


CASES = st.builds(
    entries,
    st.lists(st.integers(0, 5), min_size=3, max_size=5).map(tuple),
    st.sampled_from((0, 1, 7, 60)),
    st.sampled_from((torch.int32, torch.int64)),
    st.integers(0, 99),
)
CUBES = st.builds(
    entries,
    st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 12)),
    st.sampled_from((0, 1, 7, 60)),
    st.sampled_from((torch.int32, torch.int64)),
    st.integers(0, 99),
)
Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@QUICK
@given(CASES, st.booleans())
def test_csf_is_the_plain_loop(case: Case, dense_root: bool) -> None:
    coords, values, dense = case
    dims = coords.shape[0]
    name = f"csf.{dims}" + ".dense" * dense_root
    made = SparseTensor.from_coords(coords, values, tuple(dense.shape[:-1]), name)
    assert made.values is values and made.nnz == values.shape[0]
    assert torch.equal(reference.dense(made), dense) and torch.equal(made.to_dense(), dense)
    assert made.structure.index_dtype == coords.dtype
    back = made.to_format(f"csf.{dims}" + ".dense" * (not dense_root))
    assert back.values is values and torch.equal(back.to_dense(), dense)


@QUICK
@given(CASES)
def test_csf_has_no_coordinate_twice_above_the_last_level(case: Case) -> None:
    coords, _, dense = case
    s = SparseTensor.from_coords(coords, None, tuple(dense.shape[:-1])).structure
    fibers = {tuple(at) for at in coords[:-1].T.tolist()}
    assert s.counts[-2] == len(fibers) and s.counts[0] == len(set(coords[0].tolist()))


@QUICK
@given(CUBES, st.sampled_from(("bucket", "bucket.1", "bucket.3")))
def test_bucket_is_the_plain_loop(case: Case, name: str) -> None:
    coords, values, dense = case
    made = SparseTensor.from_coords(coords, values, tuple(dense.shape[:-1]), name)
    assert torch.equal(reference.dense(made), dense)
    assert torch.equal(made.to_format("csf").to_dense(), dense)


@QUICK
@given(CASES, st.integers(0, 3))
def test_grouped_is_the_plain_loop(case: Case, dim: int) -> None:
    coords, values, dense = case
    dims = coords.shape[0]
    name = f"grouped.{dims}.{dim % dims}"
    made = SparseTensor.from_coords(coords, values, tuple(dense.shape[:dims]), name)
    assert made.format == name and made.values is values
    assert torch.equal(reference.dense(made), dense)
    assert torch.equal(made.to_format("csf").to_dense(), dense)
    back = SparseTensor.from_coords(coords, values, made.shape).to_format(name)
    assert torch.equal(back.to_dense(), dense)


@QUICK
@given(CUBES, st.sampled_from(((1,), (2, 5), (1, 2, 4, 8))))
def test_buckets_are_a_partition(case: Case, widths: tuple[int, ...]) -> None:
    coords, values, dense = case
    a = SparseTensor.from_coords(coords, values, tuple(dense.shape[:-1]))
    parts = buckets(a, widths)
    assert sum(part.nnz for part in parts) == a.nnz
    assert all(part.values is values for part in parts)
    total = sum((reference.dense(part) for part in parts), torch.zeros_like(dense))
    assert torch.equal(total, dense)
    seen = [part.structure.as_coordinates()[1] for part in parts]
    assert sorted(p for perm in seen for p in perm.tolist()) == list(range(a.nnz))
    for part in parts:
        assert torch.equal(part.to_format("csf.3").to_dense(), part.to_dense())
        assert part.to_format("csf.3").nnz == part.nnz


@QUICK
@given(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=4), st.sampled_from((3, 4)))
def test_ragged_of_any_depth(lengths: list[list[int]], depth: int) -> None:
    sums = lambda counts: I([0, *torch.tensor(counts).cumsum(0).tolist()] if counts else [0])
    flat = [n for row in lengths for n in row]
    arrays = {"indptr1": sums([len(row) for row in lengths]), "indptr2": sums(flat)}
    shape = (len(lengths), 4, 3)
    if depth == 4:
        arrays["indptr3"] = sums([k % 3 for k in range(sum(flat))])
        shape = (*shape, 2)
    total = int(arrays[f"indptr{depth - 1}"][-1])
    values = torch.arange(1.0, total + 1.0)
    made = SparseTensor.from_arrays(f"ragged.{depth}", shape, values, **arrays)
    assert made.nnz == total and torch.equal(made.to_dense(), reference.dense(made))
    tree = made.to_format(f"csf.{depth}")
    assert tree.values is values and torch.equal(tree.to_dense(), made.to_dense())
    assert torch.equal(tree.to_format(f"ragged.{depth}").to_dense(), made.to_dense())


@pytest.mark.parametrize("format", ["csf", "csf.3.dense", "bucket.2"])
def test_from_dense(format: str) -> None:
    _, _, dense = entries((3, 4, 5), 20, torch.int64, 0)
    made = SparseTensor.from_dense(dense, format=format, dims=3)
    assert made.shape == (3, 4, 5) and torch.equal(made.to_dense(), dense)
    mask = torch.zeros(3, 4, 5)
    mask[0, 1] = 1
    kept = SparseTensor.from_dense(dense, mask, format, dims=3)
    assert kept.nnz == 5 and torch.equal(kept.to_dense(), dense * mask[..., None])


def test_two_dimensions_from_coordinates() -> None:
    coords = I([[1, 0], [2, 0]])
    for format in ("csr", "csf", "ell", "bitmap"):
        made = SparseTensor.from_coords(coords, I([1.0, 2.0]), (2, 3), format)
        assert made.to_dense().tolist() == [[2, 0, 0], [0, 0, 1]]


def test_sizes_whose_product_has_no_integer() -> None:
    size = 2**40
    coords = I([[size - 1, 0, size - 1, 5], [3, size - 1, 1, 5], [1, 1, 0, 0]])
    made = SparseTensor.from_coords(coords, torch.arange(4.0), (size, size, 2))
    found, perm = made.structure.as_coordinates()
    assert torch.equal(found, coords[:, perm]) and perm.tolist() == [1, 3, 2, 0]


def test_gradients() -> None:
    coords, values, _ = entries((2, 3, 4), 9, torch.int64, 1)
    a = SparseTensor.from_coords(coords, None, (2, 3, 4))

    def f(v: torch.Tensor) -> torch.Tensor:
        return sum(part.to_dense() ** 2 for part in buckets(a.with_values(v), (1, 2)))

    assert torch.autograd.gradcheck(f, values.requires_grad_())


CUBE = SparseTensor.from_coords(I([[0], [1], [2]]), None, (2, 3, 4))


@pytest.mark.parametrize(
    ("entry", "said", "make"),
    [
        ("shape", "coords has shape", lambda: SparseTensor.from_coords(I([[0]]), None, (2, 2, 2))),
        ("shape", "list", lambda: SparseTensor.from_coords([0], None, (2, 2))),
        ("index-dtype", "coords", lambda: SparseTensor.from_coords(I([[0.0]] * 2), None, (2, 2))),
        ("index-range", "coords[1] holds 5", lambda: cube(I([[0], [5], [0]]))),
        ("index-range", "coords[0] holds -1", lambda: cube(I([[-1], [0], [0]]))),
        ("argument", "shape = (2,)", lambda: SparseTensor.from_coords(I([[0]]), None, (2,))),
        ("value-count", "values has 3", lambda: cube(I([[0], [0], [0]]), torch.ones(3))),
        ("argument", "name = 'csr'", lambda: CUBE.to_format("csr")),
        ("argument", "name = 'csf.4'", lambda: CUBE.to_format("csf.4")),
        ("argument", "gaps", lambda: CUBE.to_format("ragged.3")),
        ("too-large", "bucket.4000000", lambda: CUBE.to_format("bucket.4000000")),
        ("shape", "(2, 3, 4)", lambda: CUBE.T),
        ("shape", "two dimensions", lambda: CUBE.structure.as_csr()),
        ("shape", "three dimensions", lambda: buckets(SparseTensor.from_dense(torch.eye(2)))),
        ("argument", "widths", lambda: buckets(CUBE, (2, 1))),
        ("argument", "widths", lambda: buckets(CUBE, ())),
        ("shape", "3 dimensions", lambda: SparseTensor.from_dense(torch.eye(2), dims=3)),
        ("index-pointer", "a row has 3", lambda: deep(I([0, 3]), I([0, 1, 1, 1]))),
        ("index-pointer", "it ends at 2", lambda: deep(I([0, 2]), I([0, 1]))),
    ],
)
def test_errors(entry: str, said: str, make: object) -> None:
    with pytest.raises(FormatError) as caught:
        make()
    assert caught.value.entry == entry
    assert said in str(caught.value)


def cube(coords: torch.Tensor, values: torch.Tensor | None = None) -> SparseTensor:
    return SparseTensor.from_coords(coords, values, (2, 3, 4))


def deep(outer: torch.Tensor, inner: torch.Tensor) -> SparseTensor:
    return SparseTensor.from_arrays("ragged.3", (1, 2, 3), indptr1=outer, indptr2=inner)


def test_a_dimension_of_nothing_is_drawn() -> None:
    at = torch.zeros(3, 0, dtype=torch.long)
    assert "nnz 0" in str(SparseTensor.from_coords(at, torch.zeros(0), (3, 0, 2)))
