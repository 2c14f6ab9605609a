"""What is made of a tensor once and used again: weights with their k's side by side, and the numbers 0, 1, 2 ...

In: a tensor that comes again unchanged. Out: the copy that was made of it, or a new one.

    w = k_major(w)          # [n, k], all n of one k side by side: copied when w changed, not in every call

A copy is found by the storage of the tensor, with offset, shape, strides and dtype, and by the stream that made it; it
is right for the version that it saw, so that a change in place is noticed. A weak reference to the storage keeps its
address from being another's, and nothing of it alive; copies of storages that are gone are dropped when another one is
made. A weight that is used so takes twice its memory.

Nothing is kept of weights that want gradients, in evaluation neither: fused optimizers, CUDA graphs that are replayed
and averages that are swapped in through `.data` change them without a new version. Nor is it of what shares its storage
with other tensors than the one that it is a view of, since `w.data` counts versions of its own; while a CUDA graph is
captured, inside torch.compile, and for tensors without a version. The copy is then a part of the call.

A change of another weight that torch does not count, through its `.data` or by another library's kernel, is not seen:
`forget()` after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tilewright.formats.transforms import outside
from tilewright.ops.backend import backend_of, place_of, precision
from tilewright.ops.library import plainly

MOST = 1024  # copies, and lengths of numbers
_COPIES: dict[Any, tuple[StorageWeakRef, int, Tensor]] = {}
_NUMBERS: dict[Any, Tensor] = {}


def forget() -> None:
    """Nothing is kept any more."""
    _COPIES.clear()


def k_major(t: Tensor, again: bool = False) -> Tensor:
    """The same matrix [rows, k] with all rows of one k side by side, as k's are gathered. again: it will come again.

    On a CPU one that may be trained, or does not come again, stays as it is: a copy would cost more than it saves.
    """
    gathered = backend_of(t.device) == "triton"
    if torch.compiler.is_compiling():  # strides may be symbols
        return t.t().contiguous().t() if gathered else t
    if t.stride(0) == 1:
        return t
    if again and lasting(t):
        return _copy(t, "k", _turned)
    return t.t().contiguous().t() if gathered else t


def copied(t: Tensor, what: object, make: Callable[[Tensor], Tensor]) -> Tensor:
    """make(t), found again as long as t is known to be the same. what: the name of that copy among those of t."""
    return _copy(t, what, outside(make)) if lasting(t) else make(t)


def lasting(t: Tensor) -> bool:
    """Whether copies of it are kept."""
    return keeps(t) and _alone(t)


def _alone(t: Tensor) -> bool:
    """Whether its version tells of all changes."""
    if t.is_inference() or t.requires_grad:
        return False
    of = t._base
    known = 2 if of is None else 3  # these, and the storage's own object
    alone: bool = torch._C._storage_Use_Count(t.untyped_storage()._cdata) <= known
    return alone and (of is None or not of.requires_grad)


def multiplied(w: Tensor, axis: str) -> Tensor:
    """A weight [n, k] as products over lists of an axis read it: single k's, and numbers wider than 16 bits, by k; its
    own rows as they lie."""
    return k_major(w, again=True) if axis == "k" or (axis == "i" and by_lanes(w)) else w


def by_lanes(t: Tensor) -> bool:
    """Whether a GPU multiplies without tensor cores. Threads then read the n's of one k from shared memory at once;
    where their k's lie side by side all of them are in one bank."""
    return backend_of(t.device) == "triton" and t.element_size() > 2 and _exact()


def _exact() -> bool:
    """A constant to torch.compile; results do not depend on it."""
    return precision() == "ieee"


_exact._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _copy(t: Tensor, what: object, make: Callable[[Tensor], Tensor]) -> Tensor:
    storage = t.untyped_storage()
    at = t.storage_offset(), t.shape, t.stride(), t.dtype, place_of(t.device)
    key = (storage._cdata, what, *at)
    found = _COPIES.get(key)
    if found is not None and found[1] == t._version:
        return found[2]
    for old in [k for k, (of, _, _) in list(_COPIES.items()) if of.expired()]:
        _COPIES.pop(old, None)  # another thread may have done so
    if len(_COPIES) >= MOST:
        _COPIES.clear()
    made = make(t)
    _COPIES[key] = StorageWeakRef(storage), t._version, made
    return made


@outside
def _turned(t: Tensor) -> Tensor:
    return t.detach().t().contiguous().t()


def numbers(count: int, dtype: torch.dtype, like: Tensor) -> Tensor:
    """0, 1, ... count - 1 where another tensor lies. They are few, and stay: a graph may hold their address."""
    if not keeps(like):
        return _counted(like, count, dtype)
    key = (count, dtype, like.device, place_of(like.device))
    made = _NUMBERS.get(key)
    if made is None:
        made = _counted(like, count, dtype)
        if len(_NUMBERS) < MOST:
            _NUMBERS[key] = made
    return made


@outside
def _counted(like: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    return torch.arange(count, dtype=dtype, device=like.device)


def keeps(t: Tensor) -> bool:
    """Whether what is made now is there for later calls."""
    if not plainly((t,)):
        return False
    return t.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
