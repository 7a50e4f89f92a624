"""Runs as the pages need them: opened, laid out, tiled."""
