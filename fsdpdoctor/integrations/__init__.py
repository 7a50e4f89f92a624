"""Integrations: a run with its report, for tools that people already use."""
