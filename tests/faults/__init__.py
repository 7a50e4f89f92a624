"""Faults injected into trainings; run apart: `pytest -m faults`."""

RESULTS: list[str] = []
"""Rows of the table, in the order in which they ran."""
