"""Printers: tile form -> Triton text, stage III -> C text. They make no decisions and know no torch."""
