"""Checks of what a record says, which may come from anyone.

What decodes may still lie: a world of a billion ranks, a number beyond 64 bits, a
span of a unit that there is not. It is looked at once, here, as it is read; past `Run`
nobody asks again.
"""
