"""Benchmarks: suites that time operators beside the best peers, check every output, and keep JSON."""

from tilewright.bench.command import main

__all__ = ["main"]
