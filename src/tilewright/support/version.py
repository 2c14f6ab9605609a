"""The version of the package, where every part may read it."""

VERSION = "0.1.0"
