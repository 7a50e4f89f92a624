"""Whom a hung job waits for, from Flight Recorder dumps."""
