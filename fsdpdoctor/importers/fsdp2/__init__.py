"""FSDP2's labels become who and why."""
