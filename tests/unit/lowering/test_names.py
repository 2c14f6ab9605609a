"""Names of generated code: one for each value."""

from __future__ import annotations

from tilewright.support.names import Names


def test_no_name_is_given_twice() -> None:
    """A lane r1 and the second r of a program are two things."""
    names = Names()
    assert [names.fresh(stem) for stem in ("r1", "r", "r", "r", "r1")] == [
        "r1",
        "r",
        "r2",
        "r3",
        "r11",
    ]
