"""The tables of README.md and docs/results.md, made from benchmarks/results/*.json.

python scripts/tables.py            # rewrite both
python scripts/tables.py --check    # only say whether they are up to date
"""

from __future__ import annotations

import sys
from typing import Any

import dynamic_tables
import plan_tables
import spmm_tables
from dynamic_tables import table
from spmm_tables import RESULTS, ROOT, load

OPEN, CLOSE = "<!-- results -->", "<!-- /results -->"


TWO_CORES = """
Every call makes its output. The plain loop is the same statement as the compiler lowers it before any schedule, built
with the same flags. `GB/s` counts a row of the dense operand for every entry.

No case is slower than its best peer, and the goals for the mean (2.5x and 2x) are reached, that of SDDMM just so.
Numba's loop, compiled for the machine with fast arithmetic, is bound by the same gathers, and most so in SDDMM from
F = 256 on. What is gained is around them: all lines of a row are asked for 16 KB ahead, beyond the end of the row in
front of it; threads share rows by their entries, the same rows in every call; sums stay in registers; outputs that
would not stay in the cache pass it, and their memory is that of the output before.
""".strip().splitlines()


BLOCKS = """
`rows of blocks in one`: so many rows of blocks were stored as one, zeros included, so that a tile of x serves them all;
the conversion is a column of the file, not of the time. `chosen unmeasured` is what the operator chooses by itself.
""".strip().splitlines()

CPU_BLOCKS = """
Every call makes its output. The dense product is faster nowhere up to a density of 0.7: sums of 8 rows and 2 vectors
stay in registers, at 290 to 480 GFLOP/s of the stored blocks, where MKL's dense product reaches 200 on this processor.
""".strip().splitlines()

GROWTH = """
The fastest of several calls, freed memory kept by the process: pages of new arrays, which only large ones get from the
system, would look like growth.
""".strip().splitlines()


def times(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}x"


def summary() -> list[str]:
    """What README says: one line for each claim, with its file."""
    spmm, sddmm = spmm_tables.means(), [r["over_peer"] for r in sddmm_rows() if r["over_peer"]]
    probe, bsr = load("h200_spmm_probe")["summary"], load("h200_bsr")["summary"]
    pruned = load("h200_pruned")["summary"]
    rows, attention = load("h200_rows")["summary"], load("h200_attention")["summary"]
    cpu = load("cpu_spmm")["summary"]
    edges = load("cpu_sddmm")["summary"]
    products, heads = load("cpu_bsr")["summary"], load("cpu_attention")["summary"]
    lines = [
        [
            "SpMM fp32, H200",
            "best cuSPARSE algorithm",
            times(spmm["over_vendor_fp32"]),
            times(spmm["over_vendor_fp32_least"]),
        ],
        [
            "SpMM bf16, H200",
            "best cuSPARSE algorithm",
            times(spmm["over_vendor_bf16"]),
            times(spmm["over_vendor_bf16_least"]),
        ],
        [
            "the same",
            "its algorithms that are as right",
            *map(times, spmm_tables.as_right()),
        ],
        [
            "SpMM, H200, same tiles",
            "hand-written Triton",
            times(probe["over_probe"]),
            times(probe["over_probe_worst"]),
        ],
        [
            "`tw.spmm` eager, H200",
            "torch `A @ x`",
            times(spmm["over_torch_eager"]),
            times(spmm["over_torch_eager_least"]),
        ],
        [
            "SDDMM fp32, H200",
            "best of cuSPARSE and torch",
            times(spmm_tables.mean(sddmm)),
            times(min(sddmm)),
        ],
        [
            "block-sparse product bf16, H200",
            "torch BSR",
            times(bsr["over_torch"]),
            times(bsr["over_torch_least"]),
        ],
        [
            "the same",
            "hand-written Triton at its own tiles",
            times(bsr["over_probe"]),
            times(bsr["over_probe_least"]),
        ],
        [
            "pruned weights fp16, H200, dense where that is faster",
            "better of cuBLAS and cuSPARSE",
            times(pruned["chosen_over_best"]),
            times(pruned["chosen_over_best_least"]),
        ],
        [
            "rows of a product bf16, H200, same tiles",
            "hand-written Triton",
            times(rows["over_probe"]),
            times(least("h200_rows", "over_probe")),
        ],
        [
            "rows of a product bf16, H200",
            "index, cuBLAS, index_copy",
            times(rows["over_torch"]),
            times(rows["over_torch_least"]),
        ],
        [
            "block-sparse attention bf16, H200, same tiles",
            "hand-written Triton",
            times(attention["over_probe"]),
            times(attention["over_probe_best_least"]),
        ],
        [
            "SpMM fp32, 2 CPU cores",
            "hand-written C",
            times(cpu["over_probe"]),
            times(cpu["over_probe_least"]),
        ],
        [
            "`tw.spmm`, 2 CPU cores",
            "torch CSR (MKL)",
            times(cpu["over_torch"]),
            times(cpu["over_torch_least"]),
        ],
        *(
            [
                f"`tw.{name}` fp32, 2 CPU cores",
                f"best of {peers}",
                times(s["over_best"]),
                times(s["over_best_least"]),
            ]
            for name, s, peers in (
                ("spmm", cpu, "torch CSR (MKL), SciPy, Numba"),
                ("sddmm", edges, "torch, Numba"),
            )
        ),
        *(
            [
                "block-sparse product fp32, 2 CPU cores",
                peer,
                times(products[key]),
                times(products[f"{key}_least"]),
            ]
            for key, peer in (("over_torch", "torch BSR"), ("over_dense", "dense torch (MKL)"))
        ),
        *(
            [
                f"block-sparse attention fp32{how}, 2 CPU cores",
                "dense torch (SDPA)",
                times(heads[key]),
                times(heads[f"{key}_least"]),
            ]
            for how, key in (("", "over_best"), (", with gradients", "over_best_trained"))
        ),
    ]
    return table(["what", "against", "faster, geometric mean", "least"], lines)


def least(name: str, key: str) -> float:
    return min(r[key] for r in load(name)["rows"] if key in r)


def blocks_table() -> list[str]:
    rows = [
        [
            r["format"],
            str(r["block"]),
            f"{r['density']:g}",
            str(r["columns"]),
            *(
                cell(r, k)
                for k in ("best_ms", "plain_ms", "chosen_ms", "dense_ms", "torch_ms", "probe_ms")
            ),
            str(r["group"]),
            times(r["over_dense"]),
            f"{r['tflop_s']:.0f}",
        ]
        for r in load("h200_bsr")["rows"]
    ]
    head = [
        "format",
        "block",
        "density",
        "columns",
        "best us",
        "rows not grouped",
        "chosen unmeasured",
        "cuBLAS dense",
        "torch BSR",
    ]
    return table(
        [*head, "hand-written", "rows of blocks in one", "over dense", "TFLOP/s of stored blocks"],
        rows,
    )


def cpu_blocks_table() -> list[str]:
    keys = ("best_ms", "torch_ms", "dense_ms")
    rows = [
        [
            r["format"],
            str(r["block"]),
            f"{r['density']:g}",
            str(r["columns"]),
            *(f"{r[k]:.3f}" for k in keys),
            times(r["over_torch"]),
            times(r["over_dense"]),
            f"{1e3 * r['tflop_s']:.0f}",
        ]
        for r in load("cpu_bsr")["rows"]
    ]
    head = ["format", "block", "density", "columns", "operator ms", "torch BSR", "dense (MKL)"]
    return table([*head, "over torch", "over dense", "GFLOP/s of stored blocks"], rows)


def cpu_attention_table() -> list[str]:
    keys = ("ours_ms", "dense_ms", "masked_ms")
    rows = [
        [
            str(r["d"]),
            str(r["block"]),
            f"{r['kept']:.2f}",
            *(f"{r[k]:.1f}" for k in keys),
            times(r["over_best"]),
            *(f"{r[k.replace('_ms', '_trained_ms')]:.1f}" for k in keys),
            times(r["over_best_trained"]),
        ]
        for r in load("cpu_attention")["rows"]
    ]
    head = ["d", "block", "kept", "operator ms", "dense", "dense, masked", "over the better"]
    return table([*head, "with gradients ms", "dense", "dense, masked", "over the better"], rows)


def pruned_table() -> list[str]:
    s = load("h200_pruned")["summary"]
    rows = [
        [str(p["columns"]), f"up to {p['density']:g}", str(p["masks"]), times(p["over_dense"])]
        for p in s["points"]
    ]
    counts = ", ".join(f"{k} {v}" for k, v in s["chosen"].items())
    at = ", ".join(f"{k} {v}" for k, v in s["sparsest"].items())
    return [
        f"Chosen, over 210 products: {counts}. With 95 % zeros and 512 columns or more, 1.2x over dense is: {at}.",
        "Forbidden where the fastest product of the run (launch, cold operands) and the gathers at the rate of the",
        "second-level cache leave no room for it.",
        "",
        *table(["columns", "density", "masks", "over dense"], rows),
    ]


def peers_table(name: str, peers: tuple[str, ...]) -> list[str]:
    """Times beside every peer, and the rate of gathers."""
    found = load(name)
    keys = ("call_ms", *(f"{p}_ms" for p in peers), "launch_ms", "plain_ms", "convert_ms")
    rows = [
        [
            r["graph"],
            str(r["width"]),
            *("-" if r.get(k) is None else f"{r[k]:.3f}" for k in keys),
            times(r["over_best"]),
            f"{r['gather_gb_s']:.0f}",
        ]
        for r in found["rows"]
    ]
    head = ["graph", "F", "operator ms", *peers, "kernel alone", "plain loop", "conversion"]
    return table([*head, "over the best", "gathered GB/s"], rows)


def tile_table(name: str) -> list[str]:
    rows = [
        [
            r["case"],
            f"{r['best_ms']:.4f}",
            f"{r['probe_ms']:.4f}",
            times(r["over_probe"]),
            f"{r['tflop_s']:.0f}",
        ]
        for r in load(name)["rows"]
        if "kind" not in r
    ]
    return table(["case", "ms", "hand-written ms", "same tiles", "TFLOP/s"], rows)


def sddmm_rows() -> list[dict[str, Any]]:
    return list(load("h200_sddmm")["rows"])


def sddmm_table() -> list[str]:
    rows = [
        [
            r["graph"],
            str(r["width"]),
            r["dtype"],
            f"{r['best_ms'] * 1e3:.1f}",
            cell(r, "vendor_ms"),
            cell(r, "torch_device_ms"),
            times(r.get("over_peer")),
        ]
        for r in sddmm_rows()
    ]
    return table(["graph", "F", "dtype", "us", "cuSPARSE us", "torch us", "over the better"], rows)


def formats_table() -> list[str]:
    rows = [
        [r["case"], r["from"], f"{r['ms']:.2f}", f"{r['bytes'] / 1e6:.0f}"]
        for r in load("h200_formats")["rows"]
    ]
    return table(["to", "from csr or coordinates", "ms", "MB"], rows)


def growth_table() -> list[str]:
    rows = [
        [
            r["case"],
            r["from"],
            f"{r['quarter_ms']:.1f}",
            f"{r['ms']:.1f}",
            f"{r['growth']:.2f}",
            f"{r['yardstick_growth']:.2f}",
        ]
        for r in load("cpu_formats")["rows"]
    ]
    head = ["to", "from csr or coordinates", "ms, 4M entries", "ms, 16M entries"]
    return table([*head, "time of an entry, growth", "the same, gather and scatter"], rows)


def cell(r: dict[str, Any], key: str) -> str:
    return "-" if r.get(key) is None else f"{r[key] * 1e3:.1f}"


def machine(name: str) -> str:
    m = load(name)["machine"]
    parts = [m.get("gpu") or m.get("cpu"), f"torch {m['torch']}", f"Triton {m.get('triton')}"]
    return (
        ", ".join(str(p) for p in parts)
        + f", {load(name)['date'][:10]}, commit {str(m.get('commit'))[:10]}"
    )


def page() -> str:
    """docs/results.md"""
    parts = [
        "# Results",
        "",
        "Made by `python scripts/tables.py` from the files in `benchmarks/results`, which `tilewright bench` wrote.",
        "Every peer ran in the same process on the same inputs; outputs were checked. On the GPU times are",
        "CUDA-graph replays with a cold second-level cache (filled by reading), output initialisation inside.",
        "Hand-written kernels are given by `--probes`. `h200_tests.txt` beside the figures is the suite on that GPU,",
        "in parts (`TILEWRIGHT_TEST_GPU=1 python -m pytest -m gpu`), with what was corrected after it.",
        "",
        *summary(),
        "",
        *spmm_tables.lines(machine),
        "",
        *plan_tables.lines(load, machine),
        "",
        "## SDDMM on the H200",
        "",
        machine("h200_sddmm"),
        "",
        "The goal (5x in fp32) is missed; it lies beyond the floor of these runs:",
        "",
        spmm_tables.at_the_floor(sddmm_rows(), "fp32", "over_peer"),
        "",
        *sddmm_table(),
        "",
        "## Block-sparse products on the H200, 4096 x 4096 bf16",
        "",
        machine("h200_bsr"),
        "",
        *BLOCKS,
        "",
        *blocks_table(),
        "",
        "![where sparse products meet the dense one](pictures/break_even.png)",
        "",
        "## Pruned weights on the H200, fp16",
        "",
        machine("h200_pruned"),
        "",
        *pruned_table(),
        "",
        "## Rows of a 4096 x 4096 x 4096 bf16 product",
        "",
        machine("h200_rows"),
        "",
        *tile_table("h200_rows"),
        "",
        "## Block-sparse attention, 16 heads, 16384 tokens, bf16",
        "",
        machine("h200_attention"),
        "",
        *tile_table("h200_attention"),
        "",
        "## Conversion of 10 million entries on the H200",
        "",
        machine("h200_formats"),
        "",
        *formats_table(),
        "",
        "## Conversion on a CPU, one thread: does the time grow with the entries?",
        "",
        machine("cpu_formats"),
        "",
        *GROWTH,
        "",
        *growth_table(),
        "",
        "## SpMM and SDDMM fp32 on 2 CPU cores",
        "",
        *TWO_CORES,
        "",
        machine("cpu_spmm"),
        "",
        *peers_table("cpu_spmm", ("torch", "scipy", "numba", "probe")),
        "",
        machine("cpu_sddmm"),
        "",
        *peers_table("cpu_sddmm", ("torch", "numba")),
        "",
        "## Block-sparse products fp32 on 2 CPU cores, 2048 x 2048",
        "",
        machine("cpu_bsr"),
        "",
        *CPU_BLOCKS,
        "",
        *cpu_blocks_table(),
        "",
        "## Block-sparse attention fp32 on 2 CPU cores, 8 heads, 2048 tokens",
        "",
        machine("cpu_attention"),
        "",
        "Dense: torch's `scaled_dot_product_attention`, without the mask and with it; outputs and gradients checked.",
        "",
        *cpu_attention_table(),
        "",
        *dynamic(),
    ]
    return "\n".join(parts)


def dynamic() -> list[str]:
    """Of each machine whose file is there."""
    names = [n for n in dynamic_tables.TITLES if (RESULTS / f"{n}.json").exists()]
    return [line for n in names for line in dynamic_tables.page(n, load(n), machine(n))]


def readme(text: str) -> str:
    before, _, rest = text.partition(OPEN)
    _, _, after = rest.partition(CLOSE)
    return f"{before}{OPEN}\n" + "\n".join(summary()) + f"\n{CLOSE}{after}"


def main() -> int:
    front, results = ROOT / "README.md", ROOT / "docs" / "results.md"
    wanted = {front: readme(front.read_text()), results: page()}
    stale = [p.name for p, text in wanted.items() if not p.exists() or p.read_text() != text]
    if "--check" in sys.argv:
        print("stale: " + ", ".join(stale) if stale else "up to date")
        return int(bool(stale))
    for path, text in wanted.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
