"""Names of dtypes: torch's on one side, the IR's on the other."""

from __future__ import annotations

import torch

from tilewright.support.errors import error

NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.bool: "b1",
}
TORCH = {v: k for k, v in NAMES.items()}


def name_of(d: torch.dtype, what: str = "a tensor") -> str:
    """The IR's name of a torch dtype."""
    made = NAMES.get(d)
    if made is None:
        raise error(
            "dtype",
            name=what,
            got=d,
            expected="float64, float32, float16, bfloat16, int64 or int32",
        )
    return made
