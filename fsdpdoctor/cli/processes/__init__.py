"""Processes that a command starts beside itself, and what becomes of them."""
