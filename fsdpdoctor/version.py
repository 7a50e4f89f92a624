"""The version, read from this file by the build and by every part that records it."""

__version__ = "0.1.0"
