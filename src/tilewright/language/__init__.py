"""Axes, index notation, programs: Python functions become stage I over references."""
