"""What is kept outside memory, and files that are not on this machine."""
