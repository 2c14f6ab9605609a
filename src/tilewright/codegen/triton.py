"""Tile form -> Triton text. A printer: one line for each statement, the user's names kept.

In: a tile program. Out: the source of one `@triton.jit` function whose parameters are the buffers, then
the sizes, then the scalars.

    acc = acc + a_v[:, None] * x_v

Functions that Triton lacks (tanh, expm1, prod ...) stand in front of the kernel, when it calls them.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.analysis.cost import BYTES
from tilewright.codegen.triton_math import functions
from tilewright.ir import tile
from tilewright.ir.expr import FLOATS, INTS, REAL, Bin, Cast, Const, Select, Un, Var, dtype_of
from tilewright.ir.node import walk

TYPES = {
    "f64": "tl.float64",
    "f32": "tl.float32",
    "f16": "tl.float16",
    "bf16": "tl.bfloat16",
    "i64": "tl.int64",
    "i32": "tl.int32",
    "u8": "tl.uint8",
    "b1": "tl.int1",
}
SIGNATURE = {
    "f64": "fp64",
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "i64": "i64",
    "i32": "i32",
    "u8": "u8",
    "b1": "i1",
}
# As Python binds: comparisons less than | and &.
_PREC = {"|": 2, "&": 3, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6}
_PREC.update(dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 1))
_PLAIN = {
    **{n: f"tl.{n}({{0}})" for n in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos")},
    **{n: f"tl.{n}({{0}})" for n in ("abs", "erf", "floor", "ceil")},
    "sigmoid": "tl.sigmoid({0})",
    "relu": "tl.where({0} < 0, 0.0, {0})",
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))",
}
_WHOLE = {
    "abs": "tl.abs({0})",
    "relu": "tl.maximum({0}, 0)",
    "sign": "tl.where({0} > 0, 1, tl.where({0} < 0, -1, 0))",
    "floor": "{0}",
    "ceil": "{0}",
}
MOST_STAGES = 8
_ALL_NAN = ", propagate_nan=tl.PropagateNan.ALL"


def parameters(p: tile.Program) -> list[tuple[str, str]]:
    """(name, signature) of every parameter, in order."""
    made = [(f"{b.name}_ptr", f"*{SIGNATURE[b.dtype]}") for b in p.buffers]
    made += [(v.name, SIGNATURE[v.dtype]) for v in p.sizes]
    return made + [(v.name, SIGNATURE[v.dtype]) for v in p.scalars]


def emit_triton(p: tile.Program, precision: str = "ieee", threads: int = 0, stages: int = 0) -> str:
    """The text of a module with one kernel. threads: of a program on a GPU, whose own instructions it then has; stages:
    turns of a loop of products whose operands are on their way at once."""
    pairs = _pairs(p, threads) if threads else set()
    return _Printer(dict(p.dims), precision, pairs, _ahead(p, stages)).module(p)


def _pairs(p: tile.Program, threads: int) -> set[Var]:
    """Tiles of which a thread holds neighbours: two of 16 bits are widened by one instruction each, not three."""
    dims = dict(p.dims)
    half = {v: held for v, held in p.types if v.dtype == "bf16" and len(held) > 1}
    return {v for v, held in half.items() if math.prod(dims[d] for d in held) >= 2 * threads}


def _ahead(p: tile.Program, stages: int) -> dict[tile.For, int]:
    """The stages of loops with small operands, which have the room that those of others have; of loops with half of it
    or less, since all others do best as they were asked."""
    held = {s: _operands(p, s) for s in walk(p.body) if isinstance(s, tile.For)}
    most = max(held.values(), default=0)
    return {
        s: min(stages * most // n, MOST_STAGES)
        for s, n in held.items()
        if stages and 0 < 2 * n <= most
    }


def _operands(p: tile.Program, loop: tile.For) -> int:
    """The bytes of the tiles that a turn of a loop of products reads; 0 where it is none."""
    if not any(isinstance(s, tile.Set) and isinstance(s.value, tile.Dot) for s in loop.body):
        return 0
    dims, types = dict(p.dims), dict(p.types)
    tiles = [
        (s.value, types[s.var])
        for s in loop.body
        if isinstance(s, tile.Set) and len(types[s.var]) > 1
    ]
    return sum(
        BYTES[e.buffer.dtype] * math.prod(dims[d] for d in held)
        for e, held in tiles
        if isinstance(e, tile.Load)
    )


class _Printer:
    def __init__(
        self, dims: dict[str, int], precision: str, pairs: set[Var], ahead: dict[tile.For, int]
    ) -> None:
        self.dims, self.precision, self.pairs, self.ahead = dims, precision, pairs, ahead

    def module(self, p: tile.Program) -> str:
        args = ", ".join(n for n, _ in parameters(p))
        body = ["    " + line for s in p.body for line in self.stmt(s)]
        head = [
            "import triton",
            "import triton.language as tl",
            *functions("\n".join(body)),
            "",
            "",
            "@triton.jit",
            f"def {p.name}({args}):",
            *(f"    # tile {d} = {n}" for d, n in p.dims),
        ]
        return "\n".join(head + body) + "\n"

    def block(self, head: str, body: tuple[Any, ...]) -> list[str]:
        inner = [line for s in body for line in self.stmt(s)] or ["pass"]
        return [head, *("    " + line for line in inner)]

    def stmt(self, s: Any) -> list[str]:
        match s:
            case tile.Set(v, e):
                return [f"{v.name} = {self.expr(e)}"]
            case tile.For(v, lo, hi, body, step):
                span = f"range({self.span(lo, hi, step)})"
                if s in self.ahead:
                    span = f"tl.{span[:-1]}, num_stages={self.ahead[s]})"
                return self.block(f"for {v.name} in {span}:", body)
            case tile.Unroll(v, count, body):
                return self.block(f"for {v.name} in tl.static_range({count}):", body)
            case tile.If(c, then, orelse):
                made = self.block(f"if {self.expr(c)}:", then)
                return made + (self.block("else:", orelse) if orelse else [])
            case tile.Store(b, at, v, mask, fresh, once):
                extra = self.mask(mask) + _caching(fresh, once)
                return [f"tl.store({self.pointer(b, at)}, {self.expr(v)}{extra})"]
            case tile.Atomic(op, b, at, v, mask):
                fn = {"sum": "add"}.get(op, op)
                where = f"{self.pointer(b, at)}, {self.expr(v)}{self.mask(mask)}"
                return [f'tl.atomic_{fn}({where}, sem="relaxed")']
            case tile.Arrive(v, b, at):
                return [f'{v.name} = tl.atomic_add({self.pointer(b, (at,))}, 1, sem="acq_rel")']
            case tile.FetchAdd(v, b, at, by, mask):
                where = f"{self.pointer(b, (at,))}, {self.expr(by)}{self.mask(mask)}"
                return [f'{v.name} = tl.atomic_add({where}, sem="relaxed")']
            case tile.Claim(v, counter, count, by):
                return self.claim(v.name, f"{counter.name}_ptr", f"{count.name}_ptr", self.expr(by))
            case tile.Barrier():
                return ["tl.debug_barrier()"]
        raise TypeError(f"no Triton text for {type(s).__name__}")

    def claim(self, name: str, counter: str, count: str, by: str) -> list[str]:
        """Programs are counted in the upper half of a number, and what they claim in the lower."""
        both, mine = f"{name}_all", f"{name}_own"
        return [
            f"{mine} = {by}",
            f'{both} = tl.atomic_add({counter}, tl.cast({mine}, tl.int64) + {1 << 32}, sem="relaxed")',
            f"{name} = tl.cast({both} & {(1 << 32) - 1}, tl.int32)",
            f"if {both} >> 32 == tl.num_programs(0) - 1:",
            f"    tl.store({count}, {name} + {mine})",
            f"    tl.store({counter}, tl.cast(0, tl.int64))",
        ]

    def span(self, lo: Any, hi: Any, step: int) -> str:
        by = f", {step}" if step != 1 else ""
        return f"{self.expr(lo)}, {self.expr(hi)}{by}"

    def mask(self, mask: Any, fill: Const | None = None) -> str:
        if mask is None:
            return ""
        other = "" if fill is None else f", other={self.number(fill)}"
        return f", mask={self.expr(mask)}{other}"

    def pointer(self, b: Any, at: tuple[Any, ...]) -> str:
        return " + ".join([f"{b.name}_ptr", *(self.expr(o, 6) for o in at)])

    def number(self, c: Const) -> str:
        if isinstance(c.value, float) and math.isnan(c.value):
            return 'float("nan")'
        if isinstance(c.value, float) and math.isinf(c.value):
            return 'float("inf")' if c.value > 0 else '-float("inf")'
        return repr(c.value)

    def shape(self, dims: tuple[str, ...]) -> str:
        return "[" + ", ".join(str(self.dims[d]) for d in dims) + "]"

    def expr(self, e: Any, outer: int = 0) -> str:
        match e:
            case Const():
                return self.number(e)
            case Var():
                return e.name
            case Bin("min" | "max" as op, a, b):
                fn = "tl.minimum" if op == "min" else "tl.maximum"
                nan = _ALL_NAN if dtype_of(e) in FLOATS else ""
                x, y = (self.literal(v, dtype_of(e)) for v in (a, b))
                return f"{fn}({x}, {y}{nan})"
            case Bin("pow", a, b):
                return f"tw_pow({self.real(a, dtype_of(e))}, {self.real(b, dtype_of(e))})"
            case Bin(op, a, b):
                p = _PREC[op]
                made = f"{self.expr(a, p + (p == 1))} {op} {self.expr(b, p + 1)}"
                return f"({made})" if p < outer else made
            case Un("neg", a):
                return f"(-{self.expr(a, 9)})"
            case Un("not", a):
                return f"({self.expr(a, 9)} == 0)"
            case Un("bits", a):
                return self.bits(a)
            case Un(op, a):
                return self.function(op, a, dtype_of(e))
            case Select(c, a, b):
                x, y = (self.literal(v, dtype_of(e)) for v in (a, b))
                return f"tl.where({self.expr(c)}, {x}, {y})"
            case Cast(d, a) if d in INTS:
                return f"tl.cast({self.expr(a)}, {TYPES[d]})"
            case Cast("f16" | "bf16" as d, a) if dtype_of(a) not in FLOATS:
                return f"{self.expr(a, 9)}.to(tl.float32).to({TYPES[d]})"
            case Cast("f32", Var() as a) if a in self.pairs:
                return f"tw_widen({a.name})"
            case Cast(d, a):
                return f"{self.expr(a, 9)}.to({TYPES[d]})"
        return self.tile_expr(e)

    def bits(self, a: Any) -> str:
        made, d = self.expr(a, 9), dtype_of(a)
        if d in ("f16", "bf16"):
            made = f"{made}.to(tl.int16, bitcast=True)"
        return f"{made}.to(tl.int32{', bitcast=True' if d == 'f32' else ''})"

    def function(self, op: str, a: Any, d: str) -> str:
        if op in _WHOLE and d not in FLOATS:
            return _WHOLE[op].format(self.expr(a, 9))
        inner = self.real(a, d) if op in REAL else self.expr(a, 9)
        return _PLAIN[op].format(inner) if op in _PLAIN else f"tw_{op}({inner})"

    def real(self, e: Any, d: str) -> str:
        """The argument of a function of floats: Triton converts neither integers nor literals."""
        if isinstance(e, Const):
            return f"tl.full([], {self.number(e)}, {TYPES[d]})"
        made = self.expr(e, 9)
        return made if dtype_of(e) in FLOATS else f"{made}.to({TYPES[d]})"

    def literal(self, e: Any, d: str) -> str:
        """An argument; Triton reads literals there in 32 bits, also beside doubles."""
        if d == "f64" and isinstance(e, Const) and math.isfinite(e.value) and e.value % 1:
            return self.real(e, d)
        return self.expr(e)

    def reduce(self, op: str, a: Any, axis: int) -> str:
        """Triton's own maximum passes over NaN; it has no product."""
        made = self.expr(a)
        if op in ("any", "all"):
            fn = "max" if op == "any" else "min"
            return f"(tl.{fn}({self.expr(a, 9)}.to(tl.int32), axis={axis}) != 0)"
        if op in ("prod", "union") or (op in ("max", "min") and dtype_of(a) in FLOATS):
            return f"tl.reduce({made}, {axis}, tw_{op})"
        return f"tl.{'max' if op == 'top' else op}({made}, axis={axis})"

    def tile_expr(self, e: Any) -> str:
        match e:
            case tile.ProgramId():
                return "tl.program_id(0)"
            case tile.Arange(dim):
                return f"tl.arange(0, {self.dims[dim]})"
            case tile.Full(v, d, ()):
                return f"tl.cast({self.number(v)}, {TYPES[d]})"
            case tile.Full(v, d, dims):
                return f"tl.full({self.shape(dims)}, {self.number(v)}, {TYPES[d]})"
            case tile.Expand(a, have, want):
                at = ", ".join(":" if d in have else "None" for d in want)
                return f"{self.expr(a, 9)}[{at}]"
            case tile.Load(b, at, mask, fill, fresh, once):
                extra = self.mask(mask, fill) + _caching(fresh, once)
                return f"tl.load({self.pointer(b, at)}{extra})"
            case tile.Dot(a, b, acc, d):
                return self.dot(a, b, acc, d)
            case tile.Trans(a):
                return f"tl.trans({self.expr(a)})"
            case tile.Reshape(a, dims):
                return f"tl.reshape({self.expr(a)}, {self.shape(dims)})"
            case tile.Reduce(op, a, axis):
                return self.reduce(op, a, axis)
            case tile.Scan("sum", a, axis):
                return f"tl.cumsum({self.expr(a)}, axis={axis})"
        raise TypeError(f"no Triton text for {type(e).__name__}")

    def dot(self, a: Any, b: Any, acc: Any, d: str) -> str:
        half = dtype_of(a) in ("f16", "bf16")
        how = "" if half else f', input_precision="{self.precision}"'
        start = "" if acc is None else f", acc={self.expr(acc)}"
        out = f", out_dtype={TYPES[d]}" if d != "f32" else ""
        return f"tl.dot({self.expr(a)}, {self.expr(b)}{start}{how}{out})"


def _caching(fresh: bool, once: bool) -> str:
    """What an access asks of the caches."""
    made = ', cache_modifier=".cg"' if fresh else ""
    return made + (', eviction_policy="evict_first"' if once else "")
