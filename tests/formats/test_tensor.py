"""SparseTensor: torch and SciPy in and out, gradients, pytrees, pictures."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import pytest
import scipy.sparse as sp
import torch
from formats.patterns import KINDS, tensor
from torch.utils import _pytree

from tilewright.formats import SparseTensor, block_mask, rules
from tilewright.support.errors import FormatError

pytestmark = pytest.mark.filterwarnings("ignore:.*[Ss]parse.*:UserWarning")
LAYOUTS = {
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "coo": torch.sparse_coo,
    "bsr": torch.sparse_bsr,
}


def torch_tensor(format: str, dense: torch.Tensor) -> torch.Tensor:
    block = {"blocksize": (2, 2)} if format == "bsr" else {}
    return dense.to_sparse(layout=LAYOUTS[format], **block)


@pytest.mark.parametrize("format", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_torch_round_trip(format: str, kind: str) -> None:
    dense = tensor(kind, (6, 4)).to_dense()
    given = torch_tensor(format, dense)
    made = SparseTensor.from_torch(given)
    assert made.format == format and torch.equal(made.to_dense(), dense)
    back = made.to_torch()
    assert back.layout == given.layout and torch.equal(back.to_dense(), dense)


@pytest.mark.parametrize("format", LAYOUTS)
def test_from_torch_copies_nothing(format: str) -> None:
    given = torch_tensor(format, torch.eye(4))
    made = SparseTensor.from_torch(given)
    values = given._values() if format == "coo" else given.values()
    assert made.values.data_ptr() == values.data_ptr()
    indices = {"coo": lambda: given._indices()[1], "csc": given.row_indices}
    expected = indices.get(format, given.col_indices)()
    assert made.structure.indices.data_ptr() == expected.data_ptr()


def test_uncoalesced_coo_keeps_its_entries() -> None:
    at = torch.tensor([[1, 0, 1], [1, 0, 1]])
    made = SparseTensor.from_torch(torch.sparse_coo_tensor(at, torch.tensor([1.0, 2, 3]), (2, 2)))
    assert made.nnz == 3 and made.values.tolist() == [1, 2, 3]


def test_trailing_dimensions() -> None:
    a = tensor("mixed", (5, 4), trailing=(3,))
    for layout in (torch.sparse_coo, torch.sparse_csr):
        back = SparseTensor.from_torch(a.to_torch(layout))
        assert back.shape == (5, 4) and torch.equal(back.to_dense(), a.to_dense())


@pytest.mark.parametrize("format", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_scipy_round_trip(format: str, kind: str) -> None:
    a = tensor(kind, (6, 4)).to_format(format, (2, 2) if format == "bsr" else None)
    made = a.to_scipy()
    assert made.format == format and torch.equal(torch.tensor(made.toarray()), a.to_dense())
    assert torch.equal(SparseTensor.from_scipy(made).to_dense(), a.to_dense())


def test_from_scipy_takes_matrices_and_other_formats() -> None:
    given = sp.lil_matrix((3, 3))
    given[1, 2] = 5.0
    assert SparseTensor.from_scipy(given).to_dense()[1, 2] == 5.0


def test_csr_leaf_gets_a_csr_gradient() -> None:
    leaf = tensor("mixed", (6, 5)).to_dense().to_sparse_csr().requires_grad_()
    for times in (1, 2):
        (SparseTensor.from_torch(leaf).to_dense() ** 2).sum().backward()
        assert leaf.grad.layout == torch.sparse_csr
        assert torch.equal(leaf.grad.crow_indices(), leaf.crow_indices())
        assert torch.equal(leaf.grad.col_indices(), leaf.col_indices())
        assert torch.equal(leaf.grad.values(), 2 * times * leaf.values().detach())


def test_csr_leaf_gradient_of_a_plain_sum() -> None:
    leaf = torch.eye(3).to_sparse_csr().requires_grad_()
    SparseTensor.from_torch(leaf).values.sum().backward()
    assert leaf.grad.layout == torch.sparse_csr and leaf.grad.values().tolist() == [1, 1, 1]


def test_coalesced_coo_leaf_gets_a_gradient() -> None:
    leaf = torch.eye(3).to_sparse().coalesce().requires_grad_()
    SparseTensor.from_torch(leaf).values.sum().backward()
    assert torch.equal(leaf.grad.to_dense(), torch.eye(3))


@pytest.mark.parametrize("format", ["csc", "bsr", "coo"])
def test_leaves_that_cannot_hold_a_gradient(format: str) -> None:
    leaf = torch_tensor(format, torch.eye(4))
    if format == "coo":
        leaf = torch.sparse_coo_tensor(leaf._indices(), leaf._values(), (4, 4))
    with pytest.raises(FormatError, match="pass values=") as caught:
        SparseTensor.from_torch(leaf.requires_grad_())
    assert caught.value.entry == "leaf-gradient"
    with torch.no_grad():
        assert SparseTensor.from_torch(leaf).nnz in (2, 4)


@pytest.mark.parametrize(
    ("entry", "make"),
    [
        ("layout", lambda: SparseTensor.from_torch(torch.eye(3))),
        ("not-sparse", lambda: SparseTensor.from_torch([1])),
        ("not-sparse", lambda: SparseTensor.from_scipy(torch.eye(3))),
        ("shape", lambda: SparseTensor.from_torch(torch.ones(2, 3, 3).to_sparse_csr())),
        ("shape", lambda: SparseTensor.from_dense(torch.ones(3))),
        ("shape", lambda: SparseTensor.from_dense(torch.ones(3, 3), torch.ones(2, 3))),
        ("value-count", lambda: tensor("one", (2, 2)).with_values(torch.ones(3))),
        ("shape", lambda: bsr().with_values(torch.ones(bsr().nnz, 2))),
        ("value-count", lambda: bsr().with_entries(torch.ones(1000))),
        ("argument", lambda: tensor("one", (2, 2)).with_entries(torch.ones(1))),
        ("layout", lambda: tensor("one", (2, 2)).to_torch(torch.strided)),
        ("shape", lambda: tensor("one", (2, 2), trailing=(2,)).to_scipy()),
        ("shape", lambda: block_mask(torch.ones(2, 2, 2))),
        ("shape", lambda: block_mask(torch.ones(2, 2), 4, (9, 8))),
        ("block-size", lambda: block_mask(torch.ones(2, 2), 0)),
    ],
)
def test_errors(entry: str, make: object) -> None:
    with pytest.raises(FormatError) as caught:
        make()
    assert caught.value.entry == entry


def bsr() -> SparseTensor:
    return tensor("mixed", (4, 4)).to_format("bsr", (2, 2))


def test_with_values_and_map() -> None:
    a = tensor("mixed", (4, 4))
    weights = a.values.requires_grad_()
    made = a.with_values(weights).map(torch.relu)
    assert made.structure is a.structure and made.requires_grad
    assert not made.detach().requires_grad
    made.to_dense().sum().backward()
    assert torch.equal(weights.grad, (weights > 0).double())


def test_pattern_means_ones() -> None:
    a = tensor("full", (3, 3)).with_values(None)
    assert a.dtype == torch.get_default_dtype() and torch.equal(a.to_dense(), torch.ones(3, 3))
    assert a.to(torch.float16).to_dense().dtype == torch.float16


def test_to_dtype_keeps_structure() -> None:
    a = tensor("mixed", (3, 3))
    made = a.to(torch.float32)
    assert made.structure is a.structure and made.dtype == torch.float32
    assert a.to("meta").values.device.type == "meta"


def test_block_mask() -> None:
    bits = torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=torch.bool)
    mask = block_mask(bits, block=(2, 3), shape=(3, 8))
    dense = bits.repeat_interleave(2, 0).repeat_interleave(3, 1)[:3, :8]
    assert mask.dtype == torch.bool and mask.values is None and mask.nnz == 2
    assert torch.equal(mask.to_dense(), dense)
    assert torch.equal(mask.T.to_dense(), dense.T)
    assert torch.equal(mask.to_format("csr").to_dense(), dense.float())
    assert torch.equal(mask.to_format("coo").to_dense(), dense.float())


def test_block_mask_of_a_pattern() -> None:
    mask = tensor("one", (4, 4)).to_format("block_mask", (2, 2))
    assert mask.nnz == 1 and mask.to_dense().sum() == 4
    assert torch.equal(mask.to_format("bsr").to_dense(), mask.to_dense().float())


@pytest.mark.parametrize("prepared", [False, True])
def test_pytree_round_trip(prepared: bool) -> None:
    a = tensor("mixed", (5, 4))
    a = a.prepare() if prepared else a
    leaves, spec = _pytree.tree_flatten(a)
    assert any(leaf is a.values for leaf in leaves)
    made = _pytree.tree_unflatten(leaves, spec)
    assert torch.equal(made.to_dense(), a.to_dense())
    assert (made.structure.transposed is not None) == prepared
    again = _pytree.treespec_loads(_pytree.treespec_dumps(spec))
    assert again == spec


@pytest.mark.parametrize("format", ["csr", "ell", "parts"])
def test_loaded_as_data_alone(format: str) -> None:
    """torch.load reads no classes that it was not told of."""
    a = tensor("mixed", (5, 4))
    a = a.decompose(rules.blocks(2)) if format == "parts" else a.to_format(format)
    torch.save({"a": a.prepare()}, file := io.BytesIO())
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)["a"].to_dense(), a.to_dense())


def test_pytree_key_paths() -> None:
    keyed, _ = _pytree.tree_flatten_with_path(tensor("mixed", (5, 4)))
    paths = {_pytree.keystr(path) for path, _ in keyed}
    assert {".structure.rows", ".structure.indices", ".values"} <= paths


def test_unflatten_checks_nothing() -> None:
    leaves, spec = _pytree.tree_flatten(tensor("mixed", (5, 4)))
    made = _pytree.tree_unflatten([object() for _ in leaves], spec)
    assert made.shape == (5, 4)


def test_picture() -> None:
    a = SparseTensor.from_dense(torch.eye(100))
    lines = str(a).splitlines()
    drawn = [line for line in lines if line.startswith("|")]
    assert len(drawn) == 16 and all(len(line) == 42 for line in drawn)
    assert lines[0] == "SparseTensor(csr, 100 x 100, nnz 100, float32, cpu)"
    assert "fill 1 %, 0 of 100 rows empty, longest row 1" in lines
    assert "  dim 1 sparse variable: indptr 808 B, indices 800 B" in lines


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr"])
def test_picture_of_small_and_empty(format: str) -> None:
    for kind, size in (("one", 1), ("empty", 3)):
        a = tensor(kind, (size, size)).to_format(format, (1, 1) if format == "bsr" else None)
        assert ("|█|" if size == 1 else "|   |") in str(a)
        assert "\n" not in repr(a)


def test_picture_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    SparseTensor.from_dense(torch.zeros(0, 3)).print()
    assert "no rows" in capsys.readouterr().out


HUGE = 10**12


@pytest.mark.parametrize("format", ["coo", "dcsr", "csf.2", "dbsr.4.4", "csc", "csr"])
def test_pictures_of_huge_matrices(format: str) -> None:
    """Neither time nor memory for rows and columns that hold nothing."""
    shape = {"csr": (3, HUGE), "csc": (HUGE, 3)}.get(format, (HUGE, HUGE))
    at = torch.tensor([0, 5, HUGE // 2, HUGE - 1])
    rows, cols = (at % n if n == 3 else at for n in shape)
    a = SparseTensor.from_coo(rows, cols, torch.ones(4), shape).to_format(format)
    told = str(a).splitlines()
    assert told[1][1] in "·█" and told[-4:] and "longest row" in str(a)
    if format == "coo":
        assert told[9][21] == told[16][40] == "·"
        assert f"{HUGE - 4} of {HUGE} rows empty, longest row 1" in str(a)


def test_a_picture_of_the_largest_shape() -> None:
    most = 2**63 - 1
    at = torch.tensor([0, most - 1])
    told = str(SparseTensor.from_coo(at, at, None, (most, most))).splitlines()
    assert told[1][1] == told[16][40] == "·"


def test_diagonals_of_a_huge_matrix_are_refused() -> None:
    at = torch.tensor([0, HUGE - 1])
    with pytest.raises(FormatError, match="would store"):
        SparseTensor.from_coo(at, at, None, (HUGE, HUGE)).to_format("dia")


def test_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        str(tensor("mixed", (4, 4)).prepare())


def test_pictures_do_not_ask_for_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert "fill 33.3 %" in str(SparseTensor.from_dense(torch.eye(3)))
    finally:
        torch.set_default_dtype(torch.float32)


MISTAKES: dict[str, Callable[[], object]] = {
    "shape": lambda: SparseTensor.from_coo(AT, AT, None, (2, 2, 2)),
    "shape = ": lambda: SparseTensor.from_coo(AT, AT, None, (2.5, 2)),  # type: ignore[arg-type]
    "shape = None": lambda: SparseTensor.from_coo(AT, AT, None, None),  # type: ignore[arg-type]
    "dense = list": lambda: SparseTensor.from_dense([[1.0]]),  # type: ignore[arg-type]
    "dense = torch.sparse_coo": lambda: SparseTensor.from_dense(torch.eye(2).to_sparse()),
    "block size 2.5": lambda: block_mask(torch.ones(2, 2), 2.5),  # type: ignore[arg-type]
    r"block size \(2, 2, 2\)": lambda: block_mask(torch.ones(2, 2), (2, 2, 2)),  # type: ignore[arg-type]
    "name = None": lambda: SparseTensor.from_dense(torch.eye(2)).to_format(None),  # type: ignore[arg-type]
}
AT = torch.tensor([0, 1])


@pytest.mark.parametrize("words", MISTAKES)
def test_what_is_no_shape_block_or_matrix_is_told(words: str) -> None:
    with pytest.raises(FormatError, match=words):
        MISTAKES[words]()


def test_one_size_is_both_sides_of_a_block() -> None:
    made = SparseTensor.from_dense(torch.eye(4), format="bsr", block=2)
    assert made.structure.block == (2, 2)
    assert SparseTensor.from_dense(torch.eye(4)).to_format("bsr", 2).nnz == 2
