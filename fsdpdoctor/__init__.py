"""fsdpdoctor: what a PyTorch FSDP2 run waits for, on which unit and rank, and why.

Nothing here imports torch before `record` or `step` is called.
"""

from __future__ import annotations

__version__ = "0.1.0"
