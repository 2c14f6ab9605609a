"""Operators on inputs in another order: rows, columns, features, heads, experts ... give the results in that order.

A case is a function of dense tensors with a letter for each dimension, like an einsum. Each letter is permuted in all
operands that have it; letters behind a bar are tied: another order of them gives something else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ops.places import Place
from torch import Tensor

import tilewright as tw

SIZES = {"i": 7, "j": 6, "k": 6, "n": 5, "f": 4, "I": 3, "J": 2, "p": 2, "q": 4, "t": 5, "s": 4}
OTHER = 3  # of all other letters
sparse = tw.SparseTensor.from_dense


def whole(a: tw.SparseTensor) -> Tensor:
    return a.to_dense()


def blocks(a: Tensor, x: Tensor) -> Tensor:
    """a: [I, p, J, q], x: [J, q, f]"""
    held = sparse(a.flatten(2).flatten(0, 1), format="bsr", block=(a.shape[1], a.shape[3]))
    return tw.bsr_matmul(held, x.flatten(0, 1)).unflatten(0, a.shape[:2])


def attended(q: Tensor, k: Tensor, v: Tensor, bits: Tensor) -> Tensor:
    """q: [b, h, I, p, d], k: [b, h, J, p, d], v: [b, h, J, p, f], blocks of p x p"""
    mask = tw.block_mask(bits != 0, block=q.shape[3])
    made = tw.attention(q.flatten(2, 3), k.flatten(2, 3), v.flatten(2, 3), mask=mask)
    return made.unflatten(2, q.shape[2:4])


def layers(x: Tensor, w: Tensor, b: Tensor, after: Tensor) -> Tensor:
    h, index = tw.ops.linear_relu(x, w, b, tile=(4, 1))
    return tw.linear(h, after, sparse=index)


def experts(x: Tensor, w: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
    index = tw.Index.from_choices(chosen.argmax(2), w.shape[0])
    return tw.ops.grouped_matmul(x, w, index, weights=gates)


def padded(x: Tensor, lengths: Tensor) -> Tensor:
    batch = tw.ragged(lengths=counts(lengths), max_len=x.shape[1])
    return batch.pad(batch.pack(x))


def counts(numbers: Tensor) -> Tensor:
    """Lengths from 0 to 4."""
    return (numbers.abs() * 100).long() % 5


def linear(x: Tensor, w: Tensor, b: Tensor, how: Any) -> Tensor:
    return tw.linear(x, w, b, sparse=how)


@tw.program
def relu_max(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))


CASES: dict[str, tuple[Callable[..., Tensor], str]] = {
    **{
        f"spmm {how}": (lambda a, x, how=how: tw.spmm(sparse(a), x, reduce=how), "ij,jf->if")
        for how in ("sum", "mean", "max", "min")
    },
    "spmm of batches": (lambda a, x: tw.spmm(sparse(a), x), "ij,bjf->bif"),
    "spmv": (lambda a, x: tw.spmv(sparse(a), x), "ij,j->i"),
    "sddmm dot": (lambda a, x, z: whole(tw.sddmm(sparse(a), x, z)), "ij,if,jf->ij"),
    "sddmm add": (lambda a, x, z: whole(tw.sddmm(sparse(a), x, z, op="add")), "ij,ih,jh->ijh"),
    "softmax": (lambda a: whole(tw.softmax(sparse(a))), "ij->ij"),
    "bsr_matmul": (blocks, "IpJq,Jqf->Ipf"),
    "attention": (attended, "bhIpd,bhJpd,bhJpf,IJ->bhIpf"),
    "linear rows": (partial(linear, how="rows"), "ik,nk,n->in"),
    "linear k": (partial(linear, how="k"), "ik,nk,n->in"),
    "linear auto": (tw.linear.auto, "ik,nk,n->in"),
    "linear mask": (lambda x, w, b, m: linear(x, w, b, m > 0), "ik,nk,n,i->in"),
    "linear lengths": (lambda x, w, b, s: linear(x, w, b, counts(s)), "tsk,nk,n,t->tsn|s"),
    "linear_relu": (layers, "ik,nk,n,fn->if"),
    "matmul columns": (lambda a, b: tw.ops.matmul(a, b, sparse="columns"), "ik,kn->in"),
    "masked_linear": (lambda x, w, m, b: tw.ops.masked_linear(x, w, m > 0, b), "ik,nk,nk,n->in"),
    "grouped_matmul": (experts, "tk,ekn,tse,ts->tn"),
    "ragged": (padded, "tsf,t->tsf|s"),
    "einsum": (lambda a, x: tw.einsum("ij,jf->if", sparse(a), x), "ij,jf->if"),
    "A + B": (lambda a, b: whole(sparse(a) + sparse(b)), "ij,ij->ij"),
    "A * B": (lambda a, b: whole(sparse(a) * sparse(b)), "ij,ij->ij"),
    "A @ B": (lambda a, b: whole(sparse(a) @ sparse(b)), "ij,jk->ik"),
    "relu_max": (lambda a, x: relu_max(sparse(a), x), "ij,jf->if"),
}


def letters(spec: str) -> tuple[list[str], str, str]:
    """Those of the operands, of the output, and those that are tied."""
    given, out = spec.partition("|")[0].split("->")
    return given.split(","), out, spec.partition("|")[2]


EACH = [(name, c) for name, (_, spec) in CASES.items() for c in sorted({*spec} - {*",->|"})]


@pytest.mark.parametrize(("name", "letter"), EACH)
def test_another_order(name: str, letter: str, fast: Place) -> None:
    run, spec = CASES[name]
    groups, out, tied = letters(spec)
    shapes = [[SIZES.get(c, OTHER) for c in g] for g in groups]
    given = [thin(shape, fast) for shape in shapes]
    order = torch.arange(SIZES.get(letter, OTHER), device=fast.device).roll(1)
    want = along(run(*given), out, letter, order)
    got = run(*(along(t, g, letter, order) for t, g in zip(given, groups, strict=True)))
    if letter in tied:
        assert not torch.allclose(got, want, atol=1e-3)
    else:
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def thin(shape: list[int], place: Place) -> Tensor:
    """Half of it is 0, if it has two dimensions: the pattern that operators look for."""
    made = torch.randn(shape, device=place.device)
    return made * (torch.rand(shape, device=place.device) < 0.5) if made.dim() == 2 else made


def along(t: Tensor, group: str, letter: str, order: Tensor) -> Tensor:
    """Another order of a dimension, if it has it."""
    return t.index_select(group.index(letter), order) if letter in group else t


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_zeros_that_are_stored(how: str, fast: Place) -> None:
    """They add nothing to a sum, and count in a mean; the largest of negative numbers is one of them."""
    places = torch.rand(6, 5, device=fast.device) < 0.7
    places[:, :2] = True
    a = torch.rand(6, 5, device=fast.device) * places
    a[:, 0] = 0
    stored = tw.SparseTensor.from_dense(places.float())
    stored = stored.with_values(a[places])
    x = -torch.rand(5, 3, device=fast.device)
    alike = torch.allclose(tw.spmm(stored, x, reduce=how), tw.spmm(sparse(a), x, reduce=how))
    assert alike == (how == "sum")


@tw.program
def beside_its_trace(a: Any, y: Any) -> None:
    i, j, k = tw.axes("i j k")
    y[i] = tw.sum(j, a[j, i] * tw.sum(k, a[k, k]))


def test_a_diagonal_under_columns(where: Place) -> None:
    """A matrix that is summed by columns is walked by columns on its diagonal, too."""
    a = torch.rand(6, 6, device=where.device) * (torch.rand(6, 6, device=where.device) < 0.6)
    torch.testing.assert_close(beside_its_trace(sparse(a)), a.sum(0) * a.trace())
