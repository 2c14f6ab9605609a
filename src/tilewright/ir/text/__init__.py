"""The printer: `text(node)`; each stage prints in its own grammar, a part of Python that `ir.parse` reads back."""

from tilewright.ir.text.show import text

__all__ = ["text"]
