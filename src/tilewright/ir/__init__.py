"""The stages as data: nodes, forms, interpreters, text. No decisions are made here."""

from tilewright.ir import text as _text  # registers the printer

__all__ = ["_text"]
