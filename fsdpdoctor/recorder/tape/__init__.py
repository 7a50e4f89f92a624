"""Hooks in C that only write down that they ran, and what is made of it later."""
