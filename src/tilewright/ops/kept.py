"""What is made of a tensor once and used again: weights with their k's side by side, and the numbers 0, 1, 2 ...

In: a tensor that comes again unchanged. Out: the copy that was made of it, or a new one.

    w = k_major(w)          # [n, k], all n of one k side by side: copied when w changed, not in every call

A copy is found by the storage of the tensor, with offset, shape, strides and dtype, and by the stream that made it; it
is right for the version that it saw, so that a change in place is noticed. A weak reference to the storage keeps its
address from being another's, and nothing of it alive; copies of storages that are gone are dropped when another one is
made. A weight that is used so takes twice its memory. Where gradients are asked for, while a CUDA graph is captured,
inside torch.compile, and for tensors without a version nothing is kept: the copy is then a part of the call.

A change that torch does not count, through `w.data` or by another library's kernel, is not seen: `forget()` after it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

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
    if t.stride(0) == 1:
        return t
    on_gpu = backend_of(t.device) == "triton"
    trained = t.requires_grad and (torch.is_grad_enabled() or not on_gpu)
    if again and not trained and keeps(t) and not t.is_inference():
        return _copy(t)
    return t.t().contiguous().t() if on_gpu else t


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


def _copy(t: Tensor) -> Tensor:
    storage = t.untyped_storage()
    at = t.storage_offset(), t.shape, t.stride(), t.dtype, place_of(t.device)
    key = (storage._cdata, *at)
    found = _COPIES.get(key)
    if found is not None and found[1] == t._version:
        return found[2]
    for old in [k for k, (of, _, _) in _COPIES.items() if of.expired()]:
        del _COPIES[old]
    if len(_COPIES) >= MOST:
        _COPIES.clear()
    made = t.detach().t().contiguous().t()
    _COPIES[key] = StorageWeakRef(storage), t._version, made
    return made


def numbers(count: int, dtype: torch.dtype, like: Tensor) -> Tensor:
    """0, 1, ... count - 1 where another tensor lies. They are few, and stay: a graph may hold their address."""
    if not keeps(like):
        return torch.arange(count, dtype=dtype, device=like.device)
    key = (count, dtype, like.device, place_of(like.device))
    made = _NUMBERS.get(key)
    if made is None:
        made = torch.arange(count, dtype=dtype, device=like.device)
        if len(_NUMBERS) < MOST:
            _NUMBERS[key] = made
    return made


def keeps(t: Tensor) -> bool:
    """Whether what is made now is there for later calls."""
    if not plainly((t,)):
        return False
    return t.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
