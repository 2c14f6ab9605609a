"""Every public verb once, on the CPU, in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import tilewright as tw
from tilewright import cli

DENSE = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 3.0, 4.0, 5.0]])


@pytest.fixture
def a() -> tw.SparseTensor:
    return tw.SparseTensor.from_dense(DENSE)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 8, requires_grad=True)


def test_spmm(a: tw.SparseTensor, x: torch.Tensor) -> None:
    y = tw.spmm(a, x)
    assert_close(y, DENSE @ x)
    y.sum().backward()
    assert_close(x.grad, DENSE.sum(0)[:, None].expand(4, 8))


def test_sddmm(a: tw.SparseTensor, x: torch.Tensor) -> None:
    z = torch.randn(3, 8)
    assert_close(tw.sddmm(a, z, x).to_dense(), DENSE * (z @ x.T))


def test_index() -> None:
    index = tw.Index.from_values(DENSE, (1, None))
    assert index.compact().tolist() == DENSE.any(1).nonzero()[:, 0].tolist()


def test_rows_and_blocks(a: tw.SparseTensor, x: torch.Tensor) -> None:
    assert torch.allclose(tw.spmv(a, x[:, 0]), DENSE @ x[:, 0])
    assert torch.allclose(tw.softmax(a).to_dense().sum(1), DENSE.any(1).float())
    blocks = tw.SparseTensor.from_dense(DENSE, format="bsr", block=(3, 2))
    assert torch.allclose(tw.bsr_matmul(blocks, x), DENSE @ x, atol=1e-5)
    assert torch.allclose(a.decompose(tw.rules.long_rows(2)).to_dense(), DENSE)


def test_linear(x: torch.Tensor) -> None:
    w = torch.randn(5, 8)
    want = torch.zeros(4, 5).index_copy(0, torch.tensor([2]), (x @ w.T)[2:3])
    assert_close(tw.linear(x, w, sparse=torch.tensor([2])), want)


def test_attention() -> None:
    q, k, v = torch.randn(3, 1, 2, 32, 8)
    bits = torch.tensor([[True, False], [True, True]])
    kept = bits.repeat_interleave(16, 0).repeat_interleave(16, 1)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=kept)
    assert_close(tw.attention(q, k, v, mask=tw.block_mask(bits, block=16)), want)


def test_einsum(a: tw.SparseTensor, x: torch.Tensor) -> None:
    assert_close(tw.einsum("ij,jf->if", a, x), DENSE @ x)


def test_program(a: tw.SparseTensor, x: torch.Tensor) -> None:
    @tw.program
    def shifted(a, x, c, y):  # type: ignore[no-untyped-def]
        i, j, f = tw.axes("i j f")
        y[i, f] = tw.sum(j, a[i, j] * tw.relu(x[j, f] + c))

    assert_close(shifted(a, x, 0.5), DENSE @ (x + 0.5).relu())


def test_graph(x: torch.Tensor) -> None:
    g = tw.graph(torch.tensor([[0, 1], [2, 2]]), num_nodes=4)
    assert_close(tw.spmm(g, x)[2], x[0] + x[1])


def test_ragged() -> None:
    r = tw.ragged(lengths=[2, 0, 1])
    assert r.pad(r.pack(torch.ones(3, 2, 1)))[:, :, 0].tolist() == [[1, 1], [0, 0], [1, 0]]


def test_tune(a: tw.SparseTensor, x: torch.Tensor) -> None:
    assert isinstance(tw.tune(tw.spmm, a, x, budget_s=0.3), dict)


def test_compile(a: tw.SparseTensor, x: torch.Tensor) -> None:
    step = torch.compile(lambda a, x: tw.spmm(a, x).relu(), fullgraph=True, backend="aot_eager")
    assert_close(step(a, x), (DENSE @ x).relu())


def test_explain(a: tw.SparseTensor, x: torch.Tensor) -> None:
    told = str(tw.explain(tw.spmm, a, x))
    assert "stage II" in told and "compulsory" in told


def test_error(a: tw.SparseTensor) -> None:
    with pytest.raises(tw.TilewrightError, match="hint:"):
        tw.spmm(a, torch.randn(3, 3))


def test_every_public_name_is_touched() -> None:
    text = Path(__file__).read_text()
    assert [n for n in tw.__all__ if f"tw.{n}" not in text and n != "ops"] == []


def test_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env"]) == 0
    told = capsys.readouterr().out
    assert "torch" in told and "TILEWRIGHT_CACHE" in told


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"tilewright {tw.__version__}\n"


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--tiny", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "WRONG" not in told
    assert (tmp_path / "tilewright_demo.png").exists() or (
        tmp_path / "tilewright_demo.svg"
    ).exists()
