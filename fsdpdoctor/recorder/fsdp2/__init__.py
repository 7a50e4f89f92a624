"""What FSDP2 does, seen through its own methods."""
