"""The fixtures of places: where, fast, tiled."""

from ops.places import fast, tiled, where

__all__ = ["fast", "tiled", "where"]
