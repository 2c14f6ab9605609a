"""Transforms of torch.func and inference mode: whether one is in force, and what must be made outside of them.

Inside of a transform every new tensor is a wrapper that dies with it, and in inference mode it is one that no gradient
may need. What is kept beyond, as the arrays that are derived from a structure, is made as if there were none.

    @outside
    def as_csr(self): ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
peek = torch._C._functorch.peek_interpreter_stack


def transformed() -> bool:
    """Whether a transform is in force, whose tensors do not tell what they want gradients for."""
    return not torch.compiler.is_compiling() and peek() is not None


def outside(fn: Callable[..., T]) -> Callable[..., T]:
    """A function of a structure, made outside of inference mode and of all transforms, unless the structure is of one
    itself."""

    @functools.wraps(fn)
    def made(s: Any, *args: Any, **how: Any) -> T:
        if torch.compiler.is_compiling():
            return fn(s, *args, **how)
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return made(s, *args, **how)
        if peek() is None or _inside(s):
            return fn(s, *args, **how)
        from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

        with temporarily_clear_interpreter_stack():
            return fn(s, *args, **how)

    return made


def _inside(s: Any) -> bool:
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    held = [getattr(s, n, None) for n in ("indptr", "indices", "rows", "perm")]
    held += getattr(s, "arrays", {}).values()
    return any(wrapped(t) for t in held if isinstance(t, Tensor))
