"""Exporters: a run, for other tools."""
