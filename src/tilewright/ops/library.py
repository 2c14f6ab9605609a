"""The one registered operator, `tilewright::run`, and all of torch's private names that it needs.

    run(str program, Tensor[] tensors, SymInt[] ints, float[] floats) -> Tensor[]

Its result depends on its arguments alone. Gradients are programs run through the same operator.
Implementations are hidden from Dynamo by being behind the dispatcher; torch._dynamo is never imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilewright.formats.compiling import constant
from tilewright.formats.transforms import peek as _transforms
from tilewright.ops.backend import backend_of, cpu_backend
from tilewright.ops.backward import backward
from tilewright.ops.entry import entry, saved_outputs
from tilewright.support.errors import TilewrightError, error
from tilewright.support.names import plain
from tilewright.support.places import public

_LIBRARY = torch.library.Library("tilewright", "DEF")
_LIBRARY.define(
    "run(str program, Tensor[] tensors, SymInt[] ints, float[] floats) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)
_RUN = torch.ops.tilewright.run.default
_below_autograd = torch._C._AutoDispatchBelowAutograd
_batched = torch._C._functorch.is_legacy_batchedtensor


def _cpu(
    program: str, tensors: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float]
) -> list[Tensor]:
    return entry(program, cpu_backend()).forward(tensors, ints, floats)


def _cuda(
    program: str, tensors: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float]
) -> list[Tensor]:
    return entry(program, "triton", tensors[0].get_device()).forward(tensors, ints, floats)


def _fake(
    program: str, tensors: Sequence[Tensor], ints: Sequence[Any], floats: Sequence[float]
) -> list[Tensor]:
    return entry(program, "c").shapes(tensors, ints)


def _here(
    program: str, tensors: Sequence[Tensor], ints: Sequence[int], floats: Sequence[float]
) -> list[Tensor]:
    """The implementation of the tensors' device."""
    first = tensors[0]
    return entry(program, backend_of(first.device), first.get_device()).forward(
        tensors, ints, floats
    )


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, program: str, ints: Any, floats: Any, *tensors: Tensor) -> Any:
        if plainly(tensors):
            outs = _here(program, tensors, ints, floats)
        else:
            with _below_autograd():
                outs = _RUN(program, list(tensors), ints, floats)
        ctx.program, ctx.ints, ctx.floats, ctx.count = program, ints, floats, len(tensors)
        ctx.save_for_backward(*tensors, *(outs[k] for k in saved_outputs(program)))
        ctx.set_materialize_grads(False)
        return tuple(outs)

    @staticmethod
    @public
    def backward(ctx: Any, *grads: Any) -> Any:
        if any(g is not None and _batched(g) for g in grads):
            got, expected = (
                "several at once, as is_grads_batched gives them",
                "torch.vmap of torch.func.vjp",
            )
            raise error(
                "argument", where="backward()", name="gradients", got=got, expected=expected
            )
        needs = ctx.needs_input_grad[3:]
        held = ctx.saved_tensors
        tensors, saved = held[: ctx.count], held[ctx.count :]
        made = backward(run, ctx.program, tensors, ctx.ints, ctx.floats, grads, needs, saved)
        return (None, None, None, *made)


class _Transformed(torch.autograd.Function):
    """The operator under transforms of torch.func: reverse mode as always, vmap sample by sample, no forward mode."""

    @staticmethod
    def forward(program: str, ints: Any, floats: Any, *tensors: Tensor) -> Any:
        return tuple(run(program, tensors, ints, floats))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.program, ctx.ints, ctx.floats, *tensors = inputs
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors, *(output[k] for k in saved_outputs(ctx.program)))
        ctx.set_materialize_grads(False)

    backward = _Run.backward

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise _no_tangent(ctx.program)

    @staticmethod
    def vmap(info: Any, in_dims: Any, program: str, ints: Any, floats: Any, *tensors: Any) -> Any:
        dims = in_dims[3:]
        each = lambda n: [
            t if d is None else t.select(d, n) for t, d in zip(tensors, dims, strict=True)
        ]
        made = [run(program, each(n), ints, floats) for n in range(info.batch_size)]
        outs = tuple(torch.stack(parts) for parts in zip(*made, strict=True))
        return outs, (0,) * len(outs)


def _no_tangent(program: str) -> TilewrightError:
    name = program.partition("|")[0]
    return error("no-tangent", name=name, got="inputs with tangents")


def _autograd(
    program: str, tensors: Sequence[Tensor], ints: Sequence[Any], floats: Sequence[float]
) -> Any:
    if _duals() and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise _no_tangent(program)
    if wants_grad(tensors):
        return run_with_grad(program, tensors, ints, floats)
    with _below_autograd():
        return _RUN(program, tensors, ints, floats)


_LIBRARY.impl("run", _cpu, "CPU")
_LIBRARY.impl("run", _cuda, "CUDA")
_LIBRARY.impl("run", _autograd, "Autograd")
torch.library.register_fake("tilewright::run", _fake, lib=_LIBRARY)


_modes = torch._C._len_torch_dispatch_stack
_recorded = torch._C._get_tracing_state
_PLAIN = (Tensor, torch.nn.Parameter)


def plainly(tensors: Sequence[Tensor]) -> bool:
    """Eager code on ordinary tensors, with no mode or transform in force: the dispatcher adds nothing."""
    return eager() and ordinary(tensors)


def eager() -> bool:
    """No mode or transform is in force."""
    return not (
        torch.compiler.is_compiling()
        or _modes()
        or _transforms() is not None
        or _duals()
        or _recorded() is not None
    )


def _duals() -> bool:
    """Whether tensors may carry tangents."""
    return forward_ad._current_level >= 0


def ordinary(tensors: Sequence[Tensor]) -> bool:
    """No tensor is of a class of its own, negated when it is read, or without memory; a loop, since this is hot."""
    for t in tensors:  # noqa: SIM110
        if type(t) not in _PLAIN or t.is_neg() or t.is_meta:
            return False
    return True


def run(
    program: str, tensors: Sequence[Tensor], ints: Sequence[Any], floats: Sequence[float] = ()
) -> list[Tensor]:
    """The registered operator; ordinary eager calls go straight to its implementation."""
    if plainly(tensors):
        if wants_grad(tensors):
            return run_with_grad(program, tensors, ints, floats)
        return _here(program, tensors, ints, floats)
    if torch.compiler.is_compiling():
        if _transformed():
            name = plain(program.partition("|")[0])
            raise error("transform-in-compile", where="torch.compile", name=name)
    elif _recorded() is not None:
        raise error("jit-trace", where="torch.jit.trace", name=plain(program.partition("|")[0]))
    elif _transforms() is not None:
        return list(_Transformed.apply(program, ints, floats, *tensors))
    made: list[Tensor] = _RUN(program, tensors, ints, floats)
    return made


@constant
def _transformed() -> bool:
    """Whether a transform is in force where torch.compile reads the call; a constant to it, which it guards."""
    return _transforms() is not None


def wants_grad(tensors: Sequence[Tensor]) -> bool:
    if torch.is_grad_enabled():
        for t in tensors:
            if t.requires_grad:
                return True
    return False


def run_with_grad(
    program: str, tensors: Sequence[Tensor], ints: Sequence[Any], floats: Sequence[float] = ()
) -> list[Tensor]:
    """For ordinary eager tensors that want gradients."""
    return list(_Run.apply(program, ints, floats, *tensors))
