"""What the host does around FSDP2: steps, pauses, waits."""
