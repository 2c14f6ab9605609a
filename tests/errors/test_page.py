"""docs/errors.md is made from the catalogue."""

from __future__ import annotations

import error_page


def test_page_is_current() -> None:
    assert error_page.PAGE.read_text() == error_page.page(), "run: python scripts/error_page.py"
