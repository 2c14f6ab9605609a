"""Transformations of stage III: pure, legal or a reason, recorded as data."""
