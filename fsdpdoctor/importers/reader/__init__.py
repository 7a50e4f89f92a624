"""Bytes become a TraceFile."""
