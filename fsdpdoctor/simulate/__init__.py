"""What-if: FSDP2's own schedule, replayed with changed settings."""
