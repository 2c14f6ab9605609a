"""The reader: `parse(source)` gives the program back that `ir.text` printed, whatever its stage."""

from tilewright.ir.parse.program import parse

__all__ = ["parse"]
