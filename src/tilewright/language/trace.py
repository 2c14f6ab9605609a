"""Index notation by operator overloading: a Python function is traced once, to stage I over references.

In: a function whose parameters are tensors (or scalars); assigned ones are outputs. Out: `Traced`.

    def relu_max(a, x, y):
        i, j, f = axes("i j f")
        y[i, f] = max_(j, a[i, j] * relu(x[j, f]))
    trace(relu_max)     # Traced(name="relu_max", inputs=("a", "x"), outputs=("y",), body=...)

Nothing here knows formats, dtypes or sizes: `formats.bind` adds them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

from tilewright.ir.coord import Append, Assign, Index, Listed, Nth, Reduce, Stmt, groups_of
from tilewright.ir.expr import FLOATS, Const, Expr, Load, Var, const
from tilewright.ir.monoid import Monoid, monoids
from tilewright.ir.node import Node, named, parts, walk
from tilewright.language.scopes import bound_apart, named_apart
from tilewright.support.errors import error
from tilewright.support.places import located
from tilewright.support.source import place_of_code, statement_of


@named
class Ref(Node):
    """A parameter of a traced function, before its format is known; a float until bound."""

    name: str
    dtype: str = "f32"


@dataclass(frozen=True)
class Traced:
    """A program over references.

    sized: the shape of outputs that indices alone do not tell. unique: index lists that name nothing twice.
    wide: outputs keep the accumulator's dtype (intermediates). kept: tensors that do so by name, and that say
    nothing of the dtype of what is made of them.
    typed: the dtypes of outputs that are not those of the inputs.
    vendor: a product that the machine's own library may do.
    likes: outputs, gradients, that are dense where an input is.
    called: parameters that have another name here than their author gave them, with that (`language.names`).
    """

    name: str
    params: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scalars: tuple[Var, ...]
    refs: tuple[Ref, ...]
    body: tuple[Stmt, ...]
    sized: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()
    unique: tuple[str, ...] = ()
    wide: bool = False
    kept: tuple[str, ...] = ()
    typed: tuple[tuple[str, str], ...] = ()
    vendor: bool = False
    called: tuple[tuple[str, str], ...] = ()
    likes: tuple[tuple[str, str], ...] = ()

    def ref(self, name: str) -> Ref:
        return next(r for r in self.refs if r.name == name)

    def __str__(self) -> str:
        lines = [f"program {self.name}({', '.join(self.params)})"]
        return "\n".join(lines + [f"  {s}" for s in self.body])

    @property
    def told(self) -> str:
        """The text, with all that statements do not show: parts of ranges, axes of one name, what was declared."""
        order: dict[Index, int] = {}
        met = [order.setdefault(n, len(order)) for n in walk(self.body) if isinstance(n, Index)]
        cut = [(order.get(n.within[0]), n.within[1]) if n.within else None for n in order]
        return f"{self}\n{met} {cut} {self.sized} {self.typed} {self.unique}"


@dataclass
class _Trace:
    body: list[Stmt] = field(default_factory=list)
    assigned: dict[str, None] = field(default_factory=dict)
    sized: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    unique: list[str] = field(default_factory=list)
    listed: list[Listed] = field(default_factory=list)
    typed: dict[str, str] = field(default_factory=dict)

    def assign(self, s: Assign) -> None:
        """A statement, with the lists of the axes in it."""
        self.assigned |= {t.buffer.name: None for t in s.targets}
        named = {n for n in walk(s) if isinstance(n, Index)}
        lists = tuple(n for n in self.listed if n.index in named)
        self.body.append(replace(s, listed=lists))


class Param:
    """What a traced function sees: `x[j, f]` reads, `y[i, f] = ...` writes and sums over indices it lacks.

    Without indices it is a tensor without dimensions: s * x[i] reads s[()].
    """

    def __init__(self, ref: Ref, trace: _Trace) -> None:
        self._ref, self._trace = ref, trace

    def __repr__(self) -> str:
        return f"{self._ref.name}, without indices"

    def __getitem__(self, at: Any) -> Load:
        indices = tuple(const(e) for e in (at if isinstance(at, tuple) else (at,)))
        for e in indices:
            if isinstance(e, Const) and e.dtype in FLOATS:
                where, expected = f"{self._ref.name}[...]", "axes and whole numbers"
                raise error(
                    "argument", where=where, name="an index", got=e.value, expected=expected
                )
        return Load(self._ref, indices)

    def __setitem__(self, at: Any, value: Any) -> None:
        where = statement_of(sys._getframe(1))
        made = term(value, f"{self._ref.name}[...] = value", "value")
        self._trace.assign(Assign((self[at],), (made,), where))

    @property
    def bare(self) -> Load:
        return self[()]

    def dim(self, n: int) -> tuple[str, int]:
        """The size of a dimension, for `sized`."""
        return (self._ref.name, n)

    def sized(self, *dims: tuple[str, int]) -> None:
        """The shape of an output that is written through an index array."""
        for d in dims:
            if not (isinstance(d, tuple) and len(d) == 2):
                where, expected = f"{self._ref.name}.sized(...)", "sizes of inputs, as x.dim(0)"
                raise error("argument", where=where, name="dims", got=repr(d), expected=expected)
        self._trace.sized[self._ref.name] = dims

    def typed(self, dtype: str) -> None:
        """The dtype of an output, where it is not that of the inputs."""
        self._trace.typed[self._ref.name] = dtype

    def unique(self) -> None:
        """A promise: this index list names nothing twice, so that what is written through it has one writer."""
        self._trace.unique.append(self._ref.name)


def _on_bare(name: str) -> Callable[..., Expr]:
    return lambda p, *others: getattr(p.bare, name)(*others)


for _name, _held in vars(Expr).items():
    if inspect.isfunction(_held):
        setattr(Param, _name, _on_bare(_name))


class Parts:
    """A reduction with several results, to be assigned by `outputs`."""

    def __init__(self, monoid: Monoid, over: tuple[Index, ...], args: tuple[Expr, ...]) -> None:
        self.monoid, self.over, self.args = monoid, over, args

    def parts(self, n: int) -> list[Expr]:
        return [Reduce(self.monoid, self.over, self.args, k) for k in range(n)]


_CURRENT: list[_Trace] = []


def outputs(*targets: Load, value: Parts) -> None:
    """Several outputs of one reduction: outputs(o[i, d], lse[i], value=softmax_sum_lse(j, s, v))"""
    where = statement_of(sys._getframe(1))
    _CURRENT[-1].assign(Assign(targets, tuple(value.parts(len(targets))), where))


def append(
    into: Param,
    count: Param,
    value: Any,
    *,
    where: Any,
    over: Any,
    group: Any = (),
    start: Any = None,
    ordered: bool = True,
) -> None:
    """append(list, count, value, where=predicate, over=axes): a compacted list of what satisfies it

    group: a list for each of its values. start: all groups in one list, each from its own start on; `count` then holds
    where each ends. ordered=False: in any order, which may be faster.
    """
    trace = _CURRENT[-1]
    for p in (into, count):
        trace.assigned.setdefault(p._ref.name)
    source = statement_of(sys._getframe(1))
    made = Append(
        into._ref,
        count._ref,
        _indices(group),
        _indices(over),
        term(where, "append(list, count, value, where=...)", "where"),
        const(value),
        source,
        None if start is None else const(start),
        ordered,
    )
    trace.body.append(made)


def axes(names: str) -> tuple[Index, ...]:
    """i, j = axes("i j")"""
    return tuple(Index(n) for n in names.replace(",", " ").split())


def part(outer: Index, count: int, name: str) -> Index:
    """The axis `name`, cut: for each value of `outer` it runs over `count` values only. i = part(I, 8, "i")"""
    return Index(name, within=(outer, _several(count, "part(axis, count, name)", "count")))


def _several(n: Any, where: str, name: str) -> int:
    """A whole number from 1 on, NumPy's included."""
    if isinstance(n, Integral) and not isinstance(n, bool) and int(n) > 0:
        return int(n)
    raise error(
        "argument", where=where, name=name, got=repr(n), expected="a whole number from 1 on"
    )


def listed(name: str, at: Load, place: Index, below: Load | None = None, tile: int = 1) -> Index:
    """The axis `name` over what a list names: q = listed("q", places[t, r], r, below=count[t])

    place: the index over the entries of the list; those from `below` on do not count. Other indices of the list are
    groups: each has a list of its own. tile: values of the axis for each entry. No list names anything twice; outputs
    that are not named are 0.
    """
    made, tile = Index(name), _several(tile, "listed(name, at, place, tile=...)", "tile")
    _CURRENT[-1].listed.append(Listed(made, at, place, below, tile))
    return made


def nth(*indices: Index) -> Nth:
    """The number of a combination of axes, the last one fastest."""
    return Nth(indices)


def _indices(over: Any) -> tuple[Index, ...]:
    return tuple(over) if isinstance(over, tuple | list) else (over,)


def reduce(name: str, over: Any, *args: Any) -> Expr:
    """The reduction of a built-in monoid, by name."""
    terms = tuple(term(a, f"{name}(axes, value)", "value") for a in args)
    return Reduce(monoids("f32")[name], _indices(over), terms)


def both(name: str, over: Any, *args: Any) -> Parts:
    """A reduction whose several results are assigned by `outputs`."""
    return Parts(monoids("f32")[name], _indices(over), tuple(const(a) for a in args))


def term(value: Any, where: str, name: str) -> Expr:
    """An expression, or a number: what == and != of Python make of expressions is neither."""
    if isinstance(value, bool):
        expected = "a comparison of expressions; == and != of Python are tw.equal(a, b) and tw.not_equal(a, b)"
        raise error("argument", where=where, name=name, got=value, expected=expected)
    return const(value)


def trace(fn: Callable[..., None], scalars: Sequence[str] = ()) -> Traced:
    """Run the function once on references."""
    params = tuple(inspect.signature(fn).parameters)
    made = _Trace()
    refs = {n: Ref(n) for n in params if n not in scalars}
    given = {n: Var(n, "f32") if n in scalars else Param(refs[n], made) for n in params}
    _CURRENT.append(made)
    try:
        fn(**given)
    finally:
        _CURRENT.pop()
    outs = tuple(made.assigned)
    _check(fn, params, outs)
    _check_order(f"{fn.__name__}({', '.join(params)})", made.body, outs)
    inputs = tuple(n for n in params if n in refs and n not in outs)
    return Traced(
        fn.__name__,
        params,
        inputs,
        tuple(n for n in params if n in outs),
        tuple(v for v in given.values() if isinstance(v, Var)),
        tuple(refs.values()),
        tuple(bound_apart(sum_leftover(s)) for s in named_apart(made.body)),
        tuple(made.sized.items()),
        tuple(made.unique),
        typed=tuple(made.typed.items()),
    )


def source_of(s: Stmt) -> str:
    """file:line of a statement in the user's program, or nothing."""
    return s.source if isinstance(s, Append) else getattr(s, "where", "")


def _check(fn: Callable[..., None], params: tuple[str, ...], outs: tuple[str, ...]) -> None:
    if outs and set(params[len(params) - len(outs) :]) == set(outs):
        return
    got = f"{', '.join(outs)}, which are not its last parameters" if outs else "no parameter"
    where = f"{fn.__name__}({', '.join(params)})"
    why = error("program-output", where=where, name=fn.__name__, got=f"it assigns {got}")
    raise located(why, place_of_code(fn.__code__) if hasattr(fn, "__code__") else "")


def _check_order(where: str, body: Sequence[Stmt], outs: tuple[str, ...]) -> None:
    """Outputs are read by statements after those that write them: y[i] += x[i] would read what memory holds."""
    written: set[str] = set()
    for s in body:
        held: tuple[Ref, ...] = ()
        read: Any = s
        if isinstance(s, Append):
            held = s.list, s.count
        elif isinstance(s, Assign):
            held = tuple(t.buffer for t in s.targets)
            read = s.values, tuple(t.indices for t in s.targets), s.listed
        for n in walk(read):
            if isinstance(n, Load) and n.buffer.name in {*outs} - written:
                why = error("unwritten", where=where, name=n.buffer.name, got="nothing that does")
                raise located(why, source_of(s), s)
        written |= {ref.name for ref in held}


def sum_leftover(s: Stmt) -> Stmt:
    """y[i, f] = a[i, j] * x[j, f]  ->  y[i, f] = sum(j, a[i, j] * x[j, f])"""
    if not isinstance(s, Assign):
        return s
    held = {n for t in s.targets for n in walk(t.indices) if isinstance(n, Index)}
    held |= {g for n in s.listed for g in (*groups_of(n), n.place)}
    held |= {n.index for n in s.listed if n.place in walk(tuple(t.indices for t in s.targets))}
    values = tuple(_close(v, held) for v in s.values)
    return Assign(s.targets, values, s.where, s.adds, s.listed)


def _close(e: Expr, held: set[Index]) -> Expr:
    left = tuple(dict.fromkeys(n for n in free_indices(e) if n not in held))
    return Reduce(monoids("f32")["sum"], left, (e,)) if left else e


def free_indices(e: Any) -> list[Index]:
    """Indices that no reduction inside binds, in order of appearance."""
    if isinstance(e, Index):
        return [e]
    if isinstance(e, Reduce):
        return [n for a in e.args for n in free_indices(a) if n not in e.over]
    if isinstance(e, Load):
        return [n for ix in e.indices for n in free_indices(ix)]
    out: list[Index] = []
    if isinstance(e, Node) and not isinstance(e, Ref | Var | Monoid):
        for c in parts(e):
            out.extend(free_indices(c))
    return out
