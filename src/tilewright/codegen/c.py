"""Stage III -> C text with OpenMP. A printer: each statement stands inside loops over its own lanes.

In: a scheduled stage III program. Out: one C function whose parameters are the buffers, the sizes, the
scalars and the number of threads.

    grid i: lane f: init acc; serial p: fold acc: sum(a[p] * x[j * n_f + f])
 -> float acc[128]; for (f) acc[f] = 0; for (p) { for (f) acc[f] += a[p] * x[j * n_f + f]; }
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.analysis.cost import BYTES
from tilewright.codegen.c_across import Across
from tilewright.codegen.c_lanes import APART, inset, terms
from tilewright.codegen.c_memory import LINE
from tilewright.codegen.c_prelude import TYPES, prelude
from tilewright.codegen.c_search import SEARCH
from tilewright.ir import flat, stmt
from tilewright.ir.expr import (
    Bin,
    Const,
    Expr,
    Load,
    Var,
)
from tilewright.ir.flat import Loop
from tilewright.ir.loops import Lookup
from tilewright.ir.monoid import Monoid, apply
from tilewright.ir.node import substitute, walk
from tilewright.lowering.lanes import lanes_of
from tilewright.schedule.balance import balanced
from tilewright.schedule.options import GRAIN
from tilewright.support.errors import error
from tilewright.support.names import Names

WHOLE = 16  # lanes that fill vectors; told of others, gcc 12 is several times slower than left alone (measured)
EVERY = ("any", "all", "union")
FAR = "tw_far"  # where outputs would not stay in the last cache


def parameters(p: flat.Program) -> list[tuple[str, str]]:
    """(name, C type) of every parameter, in order."""
    made = [
        (b.name, f"{'' if b.role in ('out', 'work') else 'const '}{TYPES[b.dtype]} *restrict")
        for b in p.buffers
    ]
    made += [(v.name, "int64_t") for v in p.sizes]
    made += [(v.name, TYPES[v.dtype]) for v in p.scalars]
    return [*made, ("n_threads", "int")]


def emit_c(p: flat.Program, grain: int = GRAIN, any_order: bool = False) -> str:
    """The text of a C file with one function. any_order: the compiler may add up lanes as suits it."""
    for what, asked, why, cure in (
        ("order", p.order, "threads take the loops of the grid as they stand", "reorder the loops"),
        ("swizzle", p.swizzle, "threads take the loops of the grid as they stand", "leave it out"),
        (
            "stream",
            _read(p),
            "C has it for what is written alone",
            "name outputs that are not read",
        ),
        ("tensorise", p.tensor, "the C compiler has no matrix products", "leave it out"),
        ("scan", p.scan, "a thread counts alone", "leave it out"),
        (
            "balance",
            p.balance and not balanced(p),
            "its rows are no turns of a grid loop any more",
            "leave `balance` out, or let it be the last step",
        ),
    ):
        if asked:
            expected = "a schedule for the CPU"
            raise error("illegal", name=what, got=why, expected=expected, cure=cure)
    printer = _Printer(p, grain, any_order)
    lines = printer.block(p.body, (), ())
    printer.function("void", p.name, parameters(p), lines)
    body = "\n".join(printer.functions)
    used = SEARCH if any(isinstance(n, Lookup) for n in walk(p.body)) else ""
    return f"{prelude(body)}{used}\n{body}"


def _read(p: flat.Program) -> list[str]:
    """The streams that are no outputs, or are read here too."""
    outs = {b.name for b in p.buffers if b.role == "out"}
    outs -= {n.buffer.name for n in walk(p.body) if isinstance(n, Load)}
    return [n for n in p.streams if n not in outs]


class _Printer(Across):
    def __init__(self, p: flat.Program, grain: int, any_order: bool) -> None:
        super().__init__(p)
        self.grain, self.any_order = grain, any_order
        self.inline: dict[Any, Expr] = {}
        self.begun: dict[Var, tuple[int, int]] = {}
        self.names = Names()
        held = {b.name for b in p.buffers} | {v.name for v in walk(p.body) if isinstance(v, Var)}
        for name in held:
            self.names.fresh(name)
        self.parallel = False
        self.functions: list[str] = []

    def function(
        self, kind: str, name: str, params: Sequence[tuple[str, str]], body: list[str]
    ) -> None:
        """One more function of the file."""
        if any(FAR in line for line in body):
            body = [f"const _Bool {FAR} = {self.touched()} > TW_FAR;", *body]
        args = ",\n    ".join(f"{t} {n}" for n, t in params)
        self.functions.append(f"{kind} {name}(\n    {args}) {{\n" + _lines(inset(body)) + "}\n")

    # --- statements -------------------------------------------------------------------------------

    def block(
        self, body: Iterable[Any], lanes: tuple[Var, ...], guards: tuple[Expr, ...]
    ) -> list[str]:
        out: list[str] = []
        for s in body:
            if not isinstance(s, stmt.Let | stmt.Prefetch):
                out += self.asked()
            out += self.stmt(s, lanes, guards)
        return [*out, *self.asked()]

    def stmt(self, s: Any, lanes: tuple[Var, ...], guards: tuple[Expr, ...]) -> list[str]:
        match s:
            case Loop(v, _, _, "lane", body):
                return self.block(body, (*lanes, v), guards)
            case Loop(_, _, _, "grid", _) if not self.parallel:
                return self.grid(s, lanes, guards)
            case Loop(v, lo, hi, kind, body):
                head = self.head(v, lo, hi)
                hint = [f"#pragma GCC unroll {hi}"] if kind == "unroll" else []
                return [*hint, f"{head} {{", *inset(self.block(body, lanes, guards)), "}"]
            case stmt.Let(v, e):
                return self.let(v, self.full(e), guards)
            case stmt.Guard(c, body):
                return self.guard(self.full(c), body, lanes, guards)
            case stmt.If(c, then, orelse):
                made = [
                    f"if ({self.expr(self.full(c))}) {{",
                    *inset(self.block(then, lanes, guards)),
                ]
                if orelse:
                    made += ["} else {", *inset(self.block(orelse, lanes, guards))]
                return [*made, "}"]
            case stmt.Init(state, m):
                return self.init(state, m, lanes, guards)
            case stmt.Fold(state, m, args):
                return self.fold(state, m, [self.full(a) for a in args], lanes, guards)
            case stmt.Join(state, m, other):
                made_ = apply(m.combine, (*state, *(self.full(v) for v in other)))
                return self.update(state, m, made_, self.folded(state, lanes), guards)
            case stmt.Store(b, (at,), v):
                at, v = self.full(at), self.full(v)
                streams = b.name in self.p.streams and self.parallel
                if any(n in self.wide for n in walk(v) if isinstance(n, Var)):
                    return self.vector_store(b, at, v, streams)
                if streams:
                    return self.stream(b, at, v, guards)
                line = f"{b.name}[{self.expr(at)}] = {self.expr(v)};"
                return self.over(self.sorted(lanes_of((at, v), self.table)), [line], guards)
            case stmt.Atomic(op, b, (at,), v):
                at, v = self.full(at), self.full(v)
                lines = self.atomic(op, b, self.expr(at), self.expr(v))
                return self.over(self.sorted(lanes_of((at, v), self.table)), lines, guards)
            case stmt.Append() if s.at is None:
                return self.append(s, lanes, guards)
            case stmt.Prefetch(b, (at,), span):
                return self.early(b, self.full(at), span, guards)
        raise error(
            "unsupported",
            ir=s,
            name=type(s).__name__,
            got="it has no C form",
            expected="a schedule for the CPU",
        )

    def vector_store(self, b: Any, at: Expr, v: Expr, streams: bool) -> list[str]:
        (lane,) = lanes_of(v, self.table)
        first, line = self.line_at(b, at, lane)
        above, to = [line], f"{first} + {lane.name}"
        value = self.vector_expr(v, b.dtype, above)
        stay = self.over_vectors(lane, b.dtype, f"TW_{b.dtype.upper()}({to}) = {value};")
        if not streams:
            return [*above, *stay]
        leave = self.over_vectors(lane, b.dtype, f"TW_PASS({to}, {value});")
        test = f"if ({FAR} && TW_LINE({first})) {{"
        return [*above, test, *inset(leave), "} else {", *inset(stay), "}"]

    def stream(self, b: Any, at: Expr, v: Expr, guards: tuple[Expr, ...]) -> list[str]:
        """Lanes that are whole lines of the output pass the caches where they would not stay."""
        lanes = self.sorted(lanes_of((at, v), self.table))
        plain = self.over(lanes, [f"{b.name}[{self.expr(at)}] = {self.expr(v)};"], guards)
        if len(lanes) != 1 or any(lanes_of(g, self.table) for g in guards):
            return plain
        size = self.extents[lanes[0]] * BYTES[b.dtype]
        rest = [t for t in terms(at) if t is not lanes[0]]
        if size % LINE or len(rest) + 1 != len(terms(at)) or lanes_of(tuple(rest), self.table):
            return plain
        to = f"{b.name} + {self.expr(substitute(at, {lanes[0]: Const(0, 'i64')}), 6)}"
        made: list[str] = []
        if isinstance(v, Var) and v.dtype == b.dtype and lanes_of(v, self.table) == {*lanes}:
            held = v.name
        else:
            held = self.names.fresh("line")
            made = [f"{TYPES[b.dtype]} {held}[{self.extents[lanes[0]]}];"]
            made += self.over(lanes, [f"{held}[{lanes[0].name}] = {self.expr(v)};"], ())
            plain = self.over(lanes, [f"{b.name}[{self.expr(at)}] = {held}[{lanes[0].name}];"], ())
        leave = f"tw_stream({to}, {held}, {size});"
        return [*made, f"if ({FAR} && TW_LINE({to})) {leave}", "else {", *inset(plain), "}"]

    def touched(self) -> str:
        """The bytes of all arrays, as far as their sizes are told."""
        told = lambda b: all(v in self.p.sizes for v in walk(b.shape) if isinstance(v, Var))
        held = [b for b in self.p.buffers if b.role in ("in", "index", "out") and told(b)]
        sizes = [[f"{BYTES[b.dtype]}LL", *(self.expr(e, 7) for e in b.shape)] for b in held]
        return " + ".join(" * ".join(s) for s in sizes)

    def atomic(self, op: str, b: Any, at: str, v: str) -> list[str]:
        """OpenMP has sums; a maximum that keeps NaN is put in place when nobody came between."""
        if op == "sum":
            return ["#pragma omp atomic", f"{b.name}[{at}] += {v};"]
        return [f"TW_ATOMIC(tw_{op}_{b.dtype}, {TYPES[b.dtype]}, {b.name} + ({at}), {v});"]

    def full(self, e: Any) -> Any:
        """Lane-wise index arithmetic is written out where it is used."""
        while any(n in self.inline for n in walk(e) if isinstance(n, Var)):
            e = substitute(e, self.inline)
        return e

    def grid(self, s: Loop, lanes: tuple[Var, ...], guards: tuple[Expr, ...]) -> list[str]:
        if s in balanced(self.p):
            return self.queues(s)
        nest = [s]
        while len(nest[-1].body) == 1 and isinstance(nest[-1].body[0], Loop):
            if nest[-1].body[0].kind != "grid":
                break
            nest.append(nest[-1].body[0])
        self.parallel = True
        many = f" collapse({len(nest)})" if len(nest) > 1 else ""
        inner = self.block(nest[-1].body, lanes, guards)
        self.parallel = False
        turns = " * ".join(self.expr(self.full(x.hi - x.lo), 7) for x in nest)
        how = f"{many} schedule(dynamic, tw_share({turns}, {self.grain}, n_threads))"
        team = "num_threads(n_threads)"
        streams = any(FAR in line for line in inner)
        made = [
            f"#pragma omp for{how} nowait" if streams else f"#pragma omp parallel for{how} {team}"
        ]
        for depth, loop in enumerate(nest):
            brace = " {" if depth == len(nest) - 1 else ""
            made.append("  " * depth + self.head(loop.var, loop.lo, loop.hi) + brace)
        pad = "  " * len(nest)
        made += [*(pad + line for line in inner), "  " * (len(nest) - 1) + "}"]
        if not streams:
            return made
        return [f"#pragma omp parallel {team}", "{", *inset([*made, "TW_FENCE;"]), "}"]

    def queues(self, s: Loop) -> list[str]:
        """Rows in pieces of about the same work, taken from queues.

        A piece is a function of its own: inside of a parallel region gcc forgets that no two arrays overlap, and reads
        again after every store.
        """
        self.parallel = True
        inner = self.block(s.body, (), ())
        self.parallel = False
        i, rows = s.var.name, self.expr(self.full(s.hi))
        fence = ["TW_FENCE;"] if any(FAR in line for line in inner) else []
        name, end = self.names.fresh(f"{self.p.name}_{i}"), self.names.fresh(f"{i}_end")
        loop = [f"for (; {i} < {end}; ++{i}) {{", *inset(inner), "}", *fence]
        params = parameters(self.p)[:-1]
        ends = [(i, "int64_t"), (end, "const int64_t")]
        self.function("static __attribute__((noinline)) void", name, [*params, *ends], loop)
        (begin,) = (b for b in self.p.buffers if b.name == self.p.balance)
        cut = lambda piece: f"tw_cut_{begin.dtype}({begin.name}, {rows}, {piece}, tw_pieces)"
        made = [
            "tw_queue tw_queues[n_threads];",
            f"const int64_t tw_pieces = tw_deal(tw_queues, {rows}, {self.grain}, n_threads);",
            "#pragma omp parallel num_threads(n_threads)",
            "for (int64_t tw_piece; (tw_piece = tw_take(tw_queues, n_threads)) >= 0;)",
            f"  {name}(",
            f"      {', '.join(n for n, _ in params)},",
            f"      {cut('tw_piece')},",
            f"      {cut('tw_piece + 1')});",
        ]
        return ["{", *inset(made), "}"]

    def head(self, v: Var, lo: Expr, hi: Expr) -> str:
        ends = f"{v.name} = {self.expr(self.full(lo))}, {v.name}_end = {self.expr(self.full(hi))}"
        if (isinstance(lo, Const | Var) and isinstance(hi, Const | Var)) or not self.reads(lo, hi):
            bound = self.expr(self.full(hi), 4)
            return f"for (int64_t {v.name} = {self.expr(self.full(lo))}; {v.name} < {bound}; ++{v.name})"
        return f"for (int64_t {ends}; {v.name} < {v.name}_end; ++{v.name})"

    def let(self, v: Var, e: Expr, guards: tuple[Expr, ...]) -> list[str]:
        if v in self.written_out:
            self.inline[v] = e
            return []
        return self.held(v, e, guards)

    def guard(
        self, c: Expr, body: tuple[Any, ...], lanes: tuple[Var, ...], guards: tuple[Expr, ...]
    ) -> list[str]:
        if lanes_of(c, self.table):
            return self.block(body, lanes, (*guards, c))
        inside = [APART, *self.block(body, lanes, guards)]
        ahead = [line for v in self.waiting(body) for line in (self.array(v), self.array(v, True))]
        declared = [line for line in ahead if line in inside]
        inside = [line for line in inside if line not in declared]
        return [*declared, f"if ({self.expr(c)}) {{", *inset(inside), "}"]

    def waiting(self, body: tuple[Any, ...]) -> list[Var]:
        """Values over lanes that are made there and read behind it."""
        made = (
            s.var for s in walk(body) if isinstance(s, stmt.Let) and lanes_of(s.var, self.table)
        )
        reads = lambda n, v: sum(x is v for x in walk(n))
        return [v for v in made if reads(self.p.body, v) > reads(body, v)]

    def append(self, s: Any, lanes: tuple[Var, ...], guards: tuple[Expr, ...]) -> list[str]:
        """Fill places one after the other; of a shared list, count what a tile keeps and take as many at once."""
        where, value, group, slot = (self.full(e) for e in (s.where, s.value, s.group, s.slot))
        kept, at = self.names.fresh("kept"), self.names.fresh("at")
        counter = f"{s.count.name}[{self.expr(group)}]"
        place = f"{s.list.name}[{self.expr(slot + Var(at))}]"
        count, fill = f"{kept} += 1;", [f"{place} = {self.expr(value)};", f"{at} += 1;"]
        if not s.shared:
            filled = self.over(lanes, fill, (*guards, where))
            return [f"int64_t {at} = {counter};", *filled, f"{counter} = {at};"]
        return [
            f"int64_t {kept} = 0, {at};",
            *self.over(lanes, [count], (*guards, where)),
            "#pragma omp atomic capture",
            f"{{ {at} = {counter}; {counter} += {kept}; }}",
            *self.over(lanes, fill, (*guards, where)),
        ]

    # --- reductions -------------------------------------------------------------------------------

    def init(
        self, state: tuple[Var, ...], m: Monoid, lanes: tuple[Var, ...], guards: tuple[Expr, ...]
    ) -> list[str]:
        out = []
        for v, ident in zip(state, m.identity, strict=True):
            self.begun[v] = (len(lanes), len(guards))
            ls = self.sorted(self.table[v])
            if v in self.wide:
                d = v.dtype
                out.append(f"tw_{d}s {v.name}[{self.extents[ls[0]]} / TW_{d.upper()}S];")
                out += self.over_vectors(ls[0], d, f"{self.vector(v)} = (tw_{d}s){{0}};")
            elif ls:
                out.append(self.array(v))
                out += self.over(ls, [f"{self.name(v)} = {self.expr(ident)};"], ())
            else:
                kind = "int" if m.name in EVERY else TYPES[v.dtype]  # gcc makes vectors of those
                out.append(f"{kind} {v.name} = {self.expr(ident)};")
        return out

    def folded(self, state: tuple[Var, ...], lanes: tuple[Var, ...]) -> tuple[Var, ...]:
        return lanes[self.begun[state[0]][0] :]

    def fold(
        self,
        state: tuple[Var, ...],
        m: Monoid,
        args: Sequence[Expr],
        lanes: tuple[Var, ...],
        guards: tuple[Expr, ...],
    ) -> list[str]:
        if state[0] in self.wide:
            v, above = state[0], list[str]()
            line = f"{self.vector(v)} += {self.vector_expr(args[0], v.dtype, above)};"
            return [*above, *self.over_vectors(self.wide[v], v.dtype, line)]
        folded = self.folded(state, lanes)
        product = self.product_of(state, m, args, folded)
        if product is not None:
            lines = self.tiles(product, guards, guards[self.begun[state[0]][1] :])
            if lines is not None:
                return lines
        if len(state) == 1 and m.joins:
            (lifted,) = apply(m.lift, args)
            lines = self.across(state[0], m, lifted, folded, guards)
            if lines is not None:
                return lines
        made = apply(m.combine, (*state, *apply(m.lift, args)))
        return self.update(state, m, made, folded, guards)

    def update(
        self,
        state: tuple[Var, ...],
        m: Monoid,
        made: Sequence[Expr],
        folded: tuple[Var, ...],
        guards: tuple[Expr, ...],
    ) -> list[str]:
        """Folded lanes outside, then members by lanes: wide members first, since they read the others."""
        groups: dict[tuple[Var, ...], list[int]] = {}
        for n, v in enumerate(state):
            groups.setdefault(self.sorted(self.table[v]), []).append(n)
        if len(groups) == 1 and len(state) == 1:
            return self.single(state[0], m, made[0], folded, guards)
        widest = frozenset() if folded else frozenset().union(*groups)
        lines, made = self.once(made, widest, guards)
        held: list[str] = []
        for ls in sorted(groups, key=len, reverse=True):
            new = {n: self.names.fresh(f"{state[n].name}_new") for n in groups[ls]}
            first = [f"const {TYPES[state[n].dtype]} {new[n]} = {self.expr(made[n])};" for n in new]
            then = [f"{self.name(state[n])} = {new[n]};" for n in new]
            if ls:
                lines += self.over(ls, first + then, guards, folded)
            else:
                lines += first
                held += then
        return self.over(folded, lines + held, guards)

    def single(
        self, v: Var, m: Monoid, made: Expr, folded: tuple[Var, ...], guards: tuple[Expr, ...]
    ) -> list[str]:
        mine = self.sorted(self.table[v])
        line = f"{self.name(v)} = {self.expr(made)};"
        if m.name == "sum" and isinstance(made, Bin) and made.a is v:
            line = f"{self.name(v)} += {self.expr(made.b)};"
        if m.name in EVERY and isinstance(made, Bin) and made.a is v:
            line = f"{self.name(v)} {made.op}= {self.expr(made.b)};"  # no branch in vectors
        pragma = []
        if m.name == "sum" and folded and not mine:
            if not self.any_order or self.extents[folded[-1]] % WHOLE == 0:
                pragma = [f"#pragma omp simd reduction(+:{v.name})"]
        elif len(mine) == 1 and not folded and not guards:  # else gcc may choose a loop around it
            pragma = ["#pragma omp simd"]
        if not folded or not mine:
            return [*pragma, *self.over((*folded, *mine), [line], guards)]
        late = guards if self.reads(made) else guards[self.begun[v][1] :]
        asked = [g for g in guards if g in late or mine[-1] not in lanes_of(g, self.table)]
        inner = self.over(mine[-1:], [line], tuple(asked), (*folded, *mine[:-1]))
        if not any(mine[-1] in lanes_of(g, self.table) for g in asked):
            inner = ["#pragma omp simd", *inner]
        return self.over((*folded, *mine[:-1]), inner, tuple(asked))


def _lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
