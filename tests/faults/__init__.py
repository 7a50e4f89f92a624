"""Faults injected into trainings; run apart: `pytest -m faults`."""

RESULTS: dict[str, str] = {}
"""Rows of the table by fault, in the order in which they ran."""
