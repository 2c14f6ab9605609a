"""A kind of call that comes again: all that its calls have in common is decided once.

In: the tensors that change from call to call (values, dense operands), of one shape and dtype each.
Out: as `library.run`. The hot path of repeated calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tilewright.ops.backend import backend_of
from tilewright.ops.choice import Choice
from tilewright.ops.entry import entry
from tilewright.ops.library import plainly, run, run_with_grad, wants_grad
from tilewright.ops.ready import Fixed


class Recipe:
    """The program's text, index arrays, work lists and integers; after the first call, the launch itself."""

    def __init__(
        self, text: str, tensors: list[Tensor], ints: list[int], choice: Choice | None = None
    ) -> None:
        self.text, self.tensors, self.ints, self.choice = text, tensors, ints, choice
        self.fixed: Fixed | None = None

    def __call__(self, moving: Sequence[Tensor]) -> list[Tensor]:
        if not plainly(moving):
            return run(*self.arguments(moving))
        if wants_grad(moving):
            return run_with_grad(*self.arguments(moving))
        if self.fixed is None:
            self.fixed = self.fix(moving)
        return self.fixed(moving)

    def arguments(self, moving: Sequence[Tensor]) -> tuple[str, list[Tensor], list[int]]:
        """What `library.run` takes."""
        return self.text, [*self.tensors, *moving], self.ints

    def fix(self, moving: Sequence[Tensor]) -> Fixed:
        first = (self.tensors or moving)[0]
        made = entry(self.text, backend_of(first.device), first.get_device())
        return Fixed(made.steps[0], self.tensors, moving, self.ints)
