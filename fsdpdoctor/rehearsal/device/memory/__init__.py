"""Memory of the virtual device: an allocator, who holds what, whether it fits."""
