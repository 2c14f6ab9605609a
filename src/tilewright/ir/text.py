"""The printer: each stage in its own grammar, a Python-like text for people.

In: any node. Out: its text. `str(node)` calls it.

    print(program)   # for i in 0:n_i: ...
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tilewright.ir import coord, expr, flat, loops, stmt, tile
from tilewright.ir.expr import Bin, Buffer, Cast, Const, LaneReduce, LaneScan, Load, Select, Un, Var
from tilewright.ir.monoid import Monoid
from tilewright.ir.node import _PRINTERS

_PREC = {"|": 1, "&": 2, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6}
_PREC.update(dict.fromkeys(expr.COMPARE, 3))


def text(n: Any) -> str:
    """The text of any node."""
    if isinstance(n, coord.Program | loops.Program | flat.Program | tile.Program):
        return "\n".join(_program(n))
    if isinstance(n, stmt.Stmt | coord.Stmt | tile.Stmt):
        return "\n".join(_stmt(n))
    if isinstance(n, coord.Axis):
        return _axis(n)
    if isinstance(n, coord.Tensor | Buffer | Monoid):
        return n.name
    return _expr(n, 0)


def number(c: Const) -> str:
    if isinstance(c.value, float):
        if math.isinf(c.value):
            return "inf" if c.value > 0 else "-inf"
        return repr(c.value)
    return str(c.value)


def _expr(e: Any, outer: int) -> str:
    match e:
        case Const():
            return number(e)
        case Var() | coord.Index():
            return e.name
        case Load(b, ix):
            return f"{b.name}[{_list(ix)}]"
        case Bin(op, a, b) if op in _PREC:
            p = _PREC[op]
            made = f"{_expr(a, p)} {op} {_expr(b, p + 1)}"
            return f"({made})" if p < outer else made
        case Bin(op, a, b):
            return f"{op}({_list((a, b))})"
        case Un("neg", a):
            return f"-{_expr(a, 7)}"
        case Un(op, a):
            return f"{op}({_expr(a, 0)})"
        case Select(c, a, b):
            return f"where({_list((c, a, b))})"
        case Cast(d, a):
            return f"{d}({_expr(a, 0)})"
        case LaneReduce(op, lanes, a):
            return f"{op}_{'_'.join(v.name for v in lanes)}({_expr(a, 0)})"
        case LaneScan(op, lane, a):
            return f"scan_{op}_{lane.name}({_expr(a, 0)})"
    return _stage_expr(e)


def _stage_expr(e: Any) -> str:
    match e:
        case coord.Reduce(m, over, args, part):
            made = f"{m.name}({_list(over)}: {_list(args)})"
            return f"{made}.{part}" if part else made
        case coord.Stored(access):
            return f"stored({_expr(access, 0)})"
        case loops.Lookup(b, lo, hi, key):
            return f"find({_list((key,))} in {b.name}[{_expr(lo, 0)}:{_expr(hi, 0)}])"
        case tile.ProgramId():
            return "program_id()"
        case tile.Arange(dim):
            return f"arange({dim})"
        case tile.Full(v, d, dims):
            return f"full([{', '.join(dims)}], {number(v)}, {d})"
        case tile.Expand(a, have, want):
            return f"{_expr(a, 9)}[{', '.join(':' if d in have else 'None' for d in want)}]"
        case tile.Load(b, offsets, mask, fill):
            where = f", where {_expr(mask, 0)} else {number(fill)}" if mask is not None else ""
            return f"load({b.name} + {' + '.join(_expr(o, 6) for o in offsets)}{where})"
        case tile.Dot(a, b, acc):
            return f"dot({_list((a, b) if acc is None else (a, b, acc))})"
        case tile.Trans(a):
            return f"trans({_expr(a, 0)})"
        case tile.Reduce(op, a, axis):
            return f"{op}({_expr(a, 0)}, axis={axis})"
        case tile.Scan(op, a, axis):
            return f"scan_{op}({_expr(a, 0)}, axis={axis})"
    raise TypeError(f"no text for {type(e).__name__}")


def _list(es: Iterable[Any]) -> str:
    return ", ".join(_expr(e, 0) for e in es)


def _block(head: str, body: tuple[Any, ...]) -> list[str]:
    return [head, *("  " + line for s in body for line in _stmt(s))]


def _names(vs: Iterable[Var]) -> str:
    return ", ".join(v.name for v in vs)


def _stmt(s: Any) -> list[str]:
    match s:
        case coord.Assign(targets, values):
            return [f"{_list(targets)} = {_list(values)}"]
        case coord.Append(dst, count, group, over, where, value):
            at = "".join(f"{g.name}, " for g in group)
            return [
                f"append {dst.name}[{at}{count.name}] = {_expr(value, 0)} "
                f"for {_list(over)} if {_expr(where, 0)}"
            ]
        case stmt.Let(v, e):
            return [f"let {v.name} = {_expr(e, 0)}"]
        case stmt.Init(state, m):
            return [f"init {_names(state)}: {m.name}"]
        case stmt.Fold(state, m, args):
            return [f"fold {_names(state)}: {m.name}({_list(args)})"]
        case stmt.Join(state, m, other):
            return [f"join {_names(state)}: {m.name} with {_names(other)}"]
        case stmt.Store(b, ix, v):
            return [f"store {b.name}[{_list(ix)}] = {_expr(v, 0)}"]
        case stmt.Prefetch(b, ix):
            return [f"prefetch {b.name}[{_list(ix)}]"]
        case stmt.Guard(c, body):
            return _block(f"where {_expr(c, 0)}", body)
        case stmt.If(c, then, orelse) | tile.If(c, then, orelse):
            made = _block(f"if {_expr(c, 0)}", then)
            return made + (_block("else", orelse) if orelse else [])
        case stmt.Append(dst, count, group, slot, where, value):
            return [
                f"append {dst.name}[{_expr(slot, 0)} + {count.name}[{_expr(group, 0)}]++]"
                f" = {_expr(value, 0)} where {_expr(where, 0)}"
            ]
        case stmt.Publish(state, m, slot, nth, pieces, body):
            head = f"publish {_names(state)}: {m.name}, piece {_expr(nth, 0)} of {_expr(pieces, 0)}"
            return _block(f"{head} at {_expr(slot, 0)}; last:", body)
        case loops.For(v, lo, hi, body):
            return _block(f"for {v.name} in {_expr(lo, 0)}:{_expr(hi, 0)}", body)
        case flat.Loop(v, lo, hi, kind, body):
            return _block(f"{kind} {v.name} in {_expr(lo, 0)}:{_expr(hi, 0)}", body)
    return _tile_stmt(s)


def _tile_stmt(s: Any) -> list[str]:
    match s:
        case tile.Set(v, e):
            return [f"{v.name} = {_expr(e, 0)}"]
        case tile.For(v, lo, hi, body, step):
            by = f":{step}" if step != 1 else ""
            return _block(f"for {v.name} in {_expr(lo, 0)}:{_expr(hi, 0)}{by}", body)
        case tile.Unroll(v, count, body):
            return _block(f"unroll {v.name} in 0:{count}", body)
        case tile.Store(b, offsets, v, mask):
            where = f" where {_expr(mask, 0)}" if mask is not None else ""
            at = " + ".join(_expr(o, 6) for o in offsets)
            return [f"store {b.name} + {at} = {_expr(v, 0)}{where}"]
        case tile.Arrive(v, b, at):
            return [f"{v.name} = arrive({b.name} + {_expr(at, 0)})"]
        case tile.FetchAdd(v, b, at, by):
            return [f"{v.name} = fetch_add({b.name} + {_expr(at, 0)}, {_expr(by, 0)})"]
        case tile.Barrier():
            return ["barrier()"]
    raise TypeError(f"no text for {type(s).__name__}")


def _axis(a: coord.Axis) -> str:
    made = f"{a.name}: {a.kind} {a.extent}"
    if a.length is not None:
        made += f" {_expr(a.length, 0)}"
    if a.parent is not None:
        made += f" under {a.parent.name}"
    arrays = [b.name for b in (a.indptr, a.indices) if b is not None]
    return made + (f" ({', '.join(arrays)})" if arrays else "")


def _program(p: Any) -> list[str]:
    if isinstance(p, coord.Program):
        return [f"coord {p.name}({', '.join(t.name for t in p.tensors)})", *_tensors(p), *_body(p)]
    stage = {loops.Program: "loops", flat.Program: "flat", tile.Program: "tile"}[type(p)]
    names = [b.name for b in p.buffers] + [v.name for v in (*p.sizes, *p.scalars)]
    head = [f"{stage} {p.name}({', '.join(names)})"]
    if isinstance(p, flat.Program) and p.divisors:
        head.append("  known: " + ", ".join(f"{v.name} % {d} == 0" for v, d in p.divisors))
    if isinstance(p, tile.Program):
        head.append("  dims: " + ", ".join(f"{d}={n}" for d, n in p.dims))
        head.append(f"  grid: {_expr(p.grid, 0)}")
    return head + _body(p)


def _tensors(p: coord.Program) -> list[str]:
    seen: set[coord.Axis] = set()
    out = []
    for t in p.tensors:
        out.append(f"  {t.role} {t.name}: {t.dtype}[{_list(t.shape)}]")
        for a in t.axes:
            if a not in seen:
                seen.add(a)
                out.append(f"    axis {_axis(a)}")
    return out


def _body(p: Any) -> list[str]:
    return ["  " + line for s in p.body for line in _stmt(s)]


_PRINTERS.append(text)
