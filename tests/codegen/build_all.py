"""Build every family of Triton kernels for sm_90, without a GPU, and print what they use as JSON.

    python tests/codegen/build_all.py [case ...]  ->  {"triton": "3.6.0", "cases": {"spmm-sum/spmm_sum": {...}}}

Each case calls a public function; where the driver would compile for this machine's GPU it compiles for
sm_90 instead, and launches do nothing. Run without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.nvidia.compiler import get_ptxas

import tilewright as tw
from tilewright import driver
from tilewright.ops.backend import backend
from tilewright.ops.families import FAMILIES
from tilewright.runtime import build_triton

BIN = Path(triton.__file__).parent / "backends/nvidia/bin"
CUOBJDUMP, PTXAS = BIN / "cuobjdump", get_ptxas(90).path
FORMATS = ("dcsr", "dbsr.4.4", "ell", "padded.4", "srbcrs.4.2", "dia", "bitmap")
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


# --- cases ------------------------------------------------------------------------------------------


def graph(dtype: torch.dtype, prepared: bool = False, rows: int = 64) -> tw.SparseTensor:
    """Rows of two entries, the first a long one."""
    at = torch.arange(rows)
    rows_, cols = torch.cat([at, at, at * 0]), torch.cat([at, (at * 7) % rows, at])
    made = tw.SparseTensor.from_coo(
        rows_.int(), cols.int(), torch.ones(3 * rows, dtype=dtype), (rows, rows)
    )
    made = made.to_format("csr")
    made = tw.SparseTensor(made.structure.as_csr(), made.values)
    return made.prepare() if prepared else made


def spmm(reduce: str, dtype: torch.dtype, width: int, prepared: bool) -> Callable[[], Any]:
    return lambda: tw.spmm(
        graph(dtype, prepared), torch.ones(64, width, dtype=dtype), reduce=reduce
    )


def spmm_parts(reduce: str, dtype: torch.dtype, columns: int) -> Callable[[], Any]:
    """Buckets merged to one list, whole rows (1) or ranges of columns: tiles alike, so that registers compare; those of
    no other case, which would have built them."""
    setting = {"rows": 8, "unroll": 4, "long": 32, "chunk": 512, "warps": 2}
    x = torch.ones(64, 128, dtype=dtype)
    return lambda: tw.spmm.plan(
        graph(dtype).decompose(tw.rules.hyb(columns, 5)).prepare(), x, setting, reduce=reduce
    )


def spmm_backward(reduce: str, dtype: torch.dtype, prepared: bool = True) -> Callable[[], Any]:
    def go() -> None:
        A = graph(dtype, prepared)
        v, x = (
            A.values.clone().requires_grad_(),
            torch.ones(64, 128, dtype=dtype, requires_grad=True),
        )
        tw.spmm(A, x, values=v, reduce=reduce).sum().backward()

    return go


def sddmm(op: str, dtype: torch.dtype, width: int) -> Callable[[], Any]:
    return lambda: tw.sddmm(
        graph(dtype), *(torch.ones(64, width, dtype=dtype) for _ in "xz"), op=op
    )


def sddmm_listed(dtype: torch.dtype) -> Callable[[], Any]:
    setting = {"rows": 4, "edges": 8, "chunk": 64, "inner": 128, "warps": 2}
    x = torch.ones(64, 128, dtype=dtype)
    return lambda: tw.sddmm.plan(graph(dtype), x, x, setting)


def rows(
    dtype: torch.dtype,
    bm: int,
    bn: int,
    bk: int,
    warps: int,
    strided: bool = False,
    **more: int,
) -> Callable[[], Any]:
    setting = {"bm": bm, "bn": bn, "bk": bk, "group": 8, "warps": warps, "stages": 4, **more}

    def go() -> None:
        w = torch.ones(256, 256, dtype=dtype)
        x, at = torch.ones(512, 256, dtype=dtype), torch.arange(256)
        tw.linear.rows_plan(x, w.t() if strided else w, at, setting)

    return go


def rows_backward(dtype: torch.dtype) -> Callable[[], Any]:
    def go() -> None:
        x, w = (torch.ones(256, 256, dtype=dtype, requires_grad=True) for _ in "xw")
        tw.linear(x, w, sparse=torch.arange(128)).sum().backward()

    return go


def linear(
    make: Callable[[torch.Tensor], Any],
    dtype: torch.dtype = BF16,
    biased: bool = False,
    rows: int = 1024,
) -> Callable[[], Any]:
    """A product over lists, and its gradients."""

    def go() -> None:
        x, w = (torch.ones(n, 512, dtype=dtype, requires_grad=True) for n in (rows, 256))
        b = torch.ones(256, dtype=dtype, requires_grad=True) if biased else None
        tw.linear(x, w, b, sparse=make(x)).sum().backward()

    return go


def k_of(rows: int, columns: int = 1) -> Callable[[torch.Tensor], Any]:
    return lambda x: tw.Index.from_values(x, (rows, columns), grouped=True)


def linear_relu(rows: int, columns: int, backward: bool = False, size: int = 1024) -> None:
    """A layer with the list of what it leaves: one kernel; and its gradients."""
    n = size * 3 // 4
    x, w = (torch.ones(m, 512, dtype=BF16, requires_grad=backward) for m in (size, n))
    b = torch.ones(n, dtype=BF16, requires_grad=backward)
    h, _ = tw.ops.linear_relu(x, w, b, tile=(rows, columns))
    if backward:
        h.sum().backward()


def masked_linear(block: int) -> None:
    x, w = (torch.ones(n, 512, dtype=BF16, requires_grad=True) for n in (1024, 256))
    mask = torch.ones(256 // block, 512 // block, dtype=torch.bool)
    tw.ops.masked_linear(x, w, mask).sum().backward()


def grouped_matmul(tokens: int) -> None:
    x = torch.ones(tokens, 256, dtype=BF16, requires_grad=True)
    w = torch.ones(8, 256, 512, dtype=BF16, requires_grad=True)
    index = tw.Index.from_choices(torch.zeros(tokens, 2, dtype=torch.int64), 8)
    tw.ops.grouped_matmul(x, w, index).sum().backward()


def attention(d: int, dtype: torch.dtype = BF16, backward: bool = False) -> Callable[[], Any]:
    def go() -> None:
        mask = tw.block_mask(torch.ones(2, 2), 128).prepare()
        q, k, v = (torch.ones(1, 2, 256, d, dtype=dtype, requires_grad=backward) for _ in "qkv")
        y = tw.attention(q, k, v, mask=mask)
        if backward:
            y.sum().backward()

    return go


def softmax_backward() -> None:
    A = graph(F32, True)
    v = torch.ones(A.nnz, 8, requires_grad=True)
    tw.softmax(A.with_values(v)).values.sum().backward()


def block_product(size: int, dtype: torch.dtype, columns: int = 512) -> Callable[[], Any]:
    def go() -> None:
        w = torch.ones(256, 256, dtype=dtype)
        A = tw.SparseTensor.from_dense(w, format="bsr", block=(size, size))
        tw.bsr_matmul(A, torch.ones(256, columns, dtype=dtype))

    return go


def found_blocks(dtype: torch.dtype) -> Callable[[], Any]:
    def go() -> None:
        x, blocks = torch.ones(256, 512, dtype=dtype), FAMILIES["blocks"]
        blocks.run(x, torch.ones(512, 512, dtype=dtype), blocks.detect(x))

    return go


def heads(prepared: bool) -> tw.SparseTensor:
    A = graph(F32, prepared)
    return A.with_values(torch.ones(A.nnz, 4))


def blocks(
    size: int, dtype: torch.dtype, rows: int = 0, setting: dict[str, int] | None = None
) -> Callable[[], Any]:
    def go() -> None:
        A = tw.SparseTensor.from_dense(
            torch.ones(128, 128, dtype=dtype), format="bsr", block=(rows or size, size)
        )
        x = torch.ones(128, 128, dtype=dtype)
        tw.spmm.plan(A, x, setting) if setting else tw.spmm(A, x)

    return go


@tw.program
def graph_attention(a: Any, s: Any, t: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.softmax_sum(j, a[i, j] * tw.leaky_relu(s[i] + t[j], 0.25), x[j, f])


@tw.program
def relu_max(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.max(j, a[i, j] * tw.relu(x[j, f]))


@tw.program
def product(a: Any, b: Any, y: Any) -> None:
    i, j, k = tw.axes("i j k")
    y[i, j] = tw.sum(k, a[i, k] * b[k, j])


@tw.program
def at_places(u: Any, a: Any, b: Any, e: Any) -> None:
    i, j, k = tw.axes("i j k")
    e[i, j] = u[i, j] * tw.sum(k, a[i, k] * b[k, j])


@tw.program
def times(a: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * x[j, f])


def in_format(name: str, dtype: torch.dtype = F32) -> Callable[[], Any]:
    def go() -> None:
        dense = (torch.eye(64) + torch.eye(64).roll(4, 0)).to(dtype)
        times(tw.SparseTensor.from_dense(dense).to_format(name), torch.ones(64, 64, dtype=dtype))

    return go


def cubes() -> None:
    at = torch.arange(32).repeat(3, 1)
    t = tw.SparseTensor.from_coords(at, torch.ones(32), (32, 32, 32), format="csf")
    tw.einsum("ijk,jf,kf->if", t, torch.ones(32, 32), torch.ones(32, 32))


def relations() -> None:
    """A relational product: one dimension of three is kept, its entries in a work list."""
    at = torch.stack([torch.arange(64) % 4, torch.arange(64), torch.arange(64) * 7 % 64])
    t = tw.SparseTensor.from_coords(at, torch.ones(64), (4, 64, 64), format="csf")
    for _ in range(2):
        tw.einsum("rij,rjf->if", t, torch.ones(4, 64, 128))


def full_blocks() -> None:
    """Full blocks of 16 apart, the rest in a work list."""
    dense = torch.eye(64) + torch.block_diag(*[torch.ones(16, 16)] * 4)
    dense[0, 0] = 0
    setting = {"rows": 8, "unroll": 4, "long": 32, "chunk": 512, "warps": 1, "block": 16}
    tw.spmm.plan(tw.SparseTensor.from_dense(dense), torch.ones(64, 128), setting)


def listed(
    tile: tuple[int | None, int | None], dtype: torch.dtype, **how: bool
) -> Callable[[], Any]:
    return lambda: tw.Index.from_values(torch.ones(4096, 4096, dtype=dtype), tile, **how)


def user_attention() -> None:
    graph_attention(graph(F32), torch.ones(64), torch.ones(64), torch.ones(64, 64))


def in_parts(run: Callable[[tw.SparseTensor], Any]) -> Callable[[], Any]:
    """Blocks of 16 with holes, a diagonal, buckets, long rows."""
    rules = (tw.rules.blocks(16, 0.09), tw.rules.band(0), tw.rules.hyb(1, 1))
    return lambda: run(graph(F32).decompose(*rules))


def in_bands() -> None:
    """Diagonals and rows of their own length in one kernel."""
    a = graph(F32).decompose(tw.rules.band(1), tw.rules.long_rows(2))
    tw.spmm(a, torch.ones(64, 128), reduce="max")


@tw.program
def scaled(a: Any, x: Any, s: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, a[i, j] * x[j, f]) * s + s * s


def scaled_backward() -> None:
    """A number of 64 bits beside others of 32."""
    s = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    scaled(graph(F32), torch.ones(64, 64), s).sum().backward()


@tw.program
def union(a: Any, b: Any, x: Any, y: Any) -> None:
    i, j, f = tw.axes("i j f")
    y[i, f] = tw.sum(j, (a[i, j] + b[i, j]) * x[j, f])


CASES: dict[str, Callable[[], Any]] = {
    **{f"spmm-{r}-listed-f32": spmm(r, F32, 128, True) for r in ("sum", "mean", "max")},
    **{f"spmm-{r}-listed-bf16": spmm(r, BF16, 256, True) for r in ("sum", "max")},
    **{
        f"buckets-{c}-{r}-{n}": spmm_parts(r, d, c)
        for r, n, d in (("sum", "f32", F32), ("sum", "bf16", BF16), ("max", "f32", F32))
        for c in (1, 2)
    },
    **{f"spmm-{r}-padded-f32": spmm(r, F32, 128, False) for r in ("sum", "mean", "max")},
    "spmm-sum-padded-bf16": spmm("sum", BF16, 128, False),
    "spmm-sum-listed-width-33": spmm("sum", F32, 33, True),
    "spmm-sum-listed-width-1": spmm("sum", F32, 1, True),
    **{f"spmm-{r}-backward-f32": spmm_backward(r, F32) for r in ("sum", "mean", "max")},
    "spmm-sum-backward-bf16": spmm_backward("sum", BF16),
    "sddmm-dot-f32": sddmm("dot", F32, 128),
    "sddmm-dot-bf16": sddmm("dot", BF16, 128),
    **{f"sddmm-dot-listed-{n}": sddmm_listed(d) for n, d in (("f32", F32), ("bf16", BF16))},
    "sddmm-add-f32": sddmm("add", F32, 8),
    "sddmm-dot-heads-f32": lambda: tw.sddmm(graph(F32), *(torch.ones(64, 4, 32) for _ in "xz")),
    "spmm-batch-f32": lambda: tw.spmm(graph(F32, True), torch.ones(3, 64, 64)),
    "spmm-heads-f32": lambda: tw.spmm(heads(True), torch.ones(64, 4, 32)),
    "spmv-f32": lambda: tw.spmv(graph(F32, True), torch.ones(64)),
    "softmax-backward-f32": softmax_backward,
    **{f"bsr-{b}-bf16": block_product(b, BF16) for b in (16, 32, 64, 128)},
    "bsr-32-f16-columns-200": block_product(32, F16, 200),
    "rows-bf16-128x256x64": rows(BF16, 128, 256, 64, 8),
    "rows-bf16-64x128x64": rows(BF16, 64, 128, 64, 4),
    "rows-f16-128x128x64": rows(F16, 128, 128, 64, 8),
    "rows-bf16-64x64x32": rows(BF16, 64, 64, 32, 4),
    "rows-bf16-128x256x64-strided": rows(BF16, 128, 256, 64, 8, True),
    "rows-f32-64x64x32": rows(F32, 64, 64, 32, 4),
    "rows-bf16-128x256x64-pieces": rows(BF16, 128, 256, 64, 8, pieces=8),
    "rows-bf16-64x64x64-pieces": rows(BF16, 64, 64, 64, 4, pieces=8),
    "rows-f32-64x64x32-pieces": rows(F32, 64, 64, 32, 4, pieces=8),
    "rows-bf16-64x64x64-tiles-in-turn": rows(BF16, 64, 64, 64, 4, pieces=1),
    **{f"rows-bf16-128x256x64-tail-{n}": rows(BF16, 128, 256, 64, 8, tail=n) for n in (32, 64)},
    "rows-f32-64x64x32-tail": rows(F32, 64, 64, 32, 4, tail=32),
    "rows-backward-bf16": rows_backward(BF16),
    "linear-mask-bf16": linear(lambda x: x[:, 0] > 0),
    "linear-found-rows-f32": linear(lambda _: "rows", F32),
    "linear-k-bf16": linear(lambda _: "k"),
    "linear-k-many-lists-bf16": linear(lambda _: "k", rows=4096),
    **{f"linear-{n}-bias-bf16": linear(lambda _, n=n: n, biased=True) for n in ("rows", "k")},
    **{f"linear-k-{n}-bf16": linear(k_of(n)) for n in (32, 64, 128)},
    "linear-16-k-32-bf16": linear(k_of(32, 16)),
    "linear-relu-32x1-bf16": partial(linear_relu, 32, 1, True),
    "linear-relu-32x64-bf16": partial(linear_relu, 32, 64),
    "linear-relu-32x64-bf16-large": partial(linear_relu, 32, 64, size=4096),
    **{f"masked-linear-{n}-bf16": partial(masked_linear, n) for n in (1, 32, 128)},
    **{f"grouped-{n}-bf16": partial(grouped_matmul, n) for n in (64, 1024)},
    "attention-64": attention(64),
    "attention-128": attention(128),
    "attention-80": attention(80),
    "attention-64-backward": attention(64, backward=True),
    **{f"blocks-{b}-bf16": blocks(b, BF16) for b in (16, 32, 64)},
    "blocks-32-f32": blocks(32, F32),
    "blocks-64x16-four-bf16": blocks(16, BF16, 64, {"blocks": 4, "width": 128, "outer": 1}),
    **{f"found-blocks-{n}": found_blocks(d) for n, d in (("bf16", BF16), ("f32", F32))},
    "two-structures-dense": lambda: product(graph(F32), graph(F32)),
    "two-structures-sparse": lambda: at_places(graph(F32), graph(F32), graph(F32)),
    "two-structures-sum": lambda: graph(F32) + graph(F32),
    **{f"format-{n}": in_format(n) for n in FORMATS},
    "format-srbcrs.16.32-bf16": in_format("srbcrs.16.32", BF16),
    "format-csf": cubes,
    "relations": relations,
    "blocks-and-rows-f32": full_blocks,
    "parts-sum": in_parts(lambda a: tw.spmm(a, torch.ones(64, 128))),
    "parts-max": in_parts(lambda a: tw.spmm(a, torch.ones(64, 128), reduce="max")),
    "parts-bands-max": in_bands,
    "parts-sddmm": in_parts(lambda a: tw.sddmm(a, torch.ones(64, 32), torch.ones(64, 32))),
    "union": lambda: union(graph(F32), graph(F32), torch.ones(64, 128)),
    "list-1x32-bf16": listed((1, 32), BF16),
    "list-16x1-bf16-any-order": listed((16, 1), BF16, ordered=False),
    "list-64x1-bf16-by-row": listed((64, 1), BF16, grouped=True),
    "list-8x1-bf16-by-row": listed((8, 1), BF16, grouped=True),
    "list-32x1-f32-by-row": listed((32, 1), F32, grouped=True),
    "list-128x1-bf16-by-row": listed((128, 1), BF16, grouped=True),
    "list-rows-f32": listed((1, None), F32),
    "list-1x1-f32-any-order": listed((1, 1), F32, ordered=False),
    "list-columns-f16": listed((None, 8), F16),
    "list-lengths": lambda: tw.Index.from_lengths(torch.ones(64, dtype=torch.int32), 512),
    "list-choices": lambda: tw.Index.from_choices(torch.ones(4096, 8, dtype=torch.int32), 64),
    "program-softmax": user_attention,
    "program-scaled": scaled_backward,
    "program-max": lambda: relu_max(graph(F32), torch.ones(64, 64)),
}


# --- building ---------------------------------------------------------------------------------------

FOUND: dict[str, dict[str, Any]] = {}
CASE = [""]
COMPILE = driver.compile_triton


def offline(*args: Any, **kwargs: Any) -> Any:
    """compile_triton for sm_90; the kernel does nothing when launched."""
    given = dict(
        zip(
            ("p", "setting", "divisors", "known", "aligned", "target", "options"),
            args,
            strict=False,
        )
    )
    given.update(kwargs)
    given["target"] = build_triton.offline_target()
    made = COMPILE(**given)
    made.call = lambda *_: None
    label = f"{CASE[0]}/{re.sub('_[0-9a-f]{8}(?=_|$)', '', made.name)}"
    FOUND[label] = {**used(made.compiled), "setting": setting_of(given["setting"])}
    return made


def setting_of(setting: dict[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in sorted(setting.items()))


def used(compiled: Any) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(compiled.asm["cubin"])
        f.flush()
        got = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", f.name], capture_output=True, text=True
        )
    found = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", got.stdout))
    wgmma = "wgmma.mma_async" in compiled.asm["ptx"]
    return {
        "registers": int(found["REG"]),
        "spills": int(found["STACK"]) + int(found["LOCAL"]),
        "shared": int(compiled.metadata.shared),
        "wgmma": wgmma,
        **({"waits": waits(compiled.asm["ptx"])} if wgmma else {}),
    }


def waits(ptx: str) -> bool:
    """Whether the assembler waits for every product before the next one begins, as it tells."""
    with tempfile.NamedTemporaryFile(suffix=".ptx") as f:
        f.write(ptx.encode())
        f.flush()
        how = ["-v", "--gpu-name=sm_90a", f.name, "-o", f"{f.name}.cubin"]
        got = subprocess.run([PTXAS, *how], capture_output=True, text=True)
        Path(f"{f.name}.cubin").unlink(missing_ok=True)
    assert got.returncode == 0, got.stderr
    return "wgmma.mma_async instructions are serialized" in got.stderr


def build(names: list[str]) -> None:
    driver.compile_triton = offline
    torch.set_num_threads(2)  # plans depend on it, as on the cores of a GPU
    # Launches write nothing: what is read afterwards is 0, not what memory held.
    torch.Tensor.new_empty = torch.Tensor.new_zeros  # type: ignore[method-assign]
    with backend("triton"):
        for name in names:
            CASE[0] = name
            try:
                CASES[name]()
            except Exception as why:
                FOUND[name] = {"error": f"{type(why).__name__}: {why}"[:2000]}


if __name__ == "__main__":
    build(sys.argv[1:] or list(CASES))
    print(json.dumps({"triton": triton.__version__, "cases": FOUND}))
