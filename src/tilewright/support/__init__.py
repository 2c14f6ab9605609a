"""Errors, knobs and names: what everything else stands on."""
