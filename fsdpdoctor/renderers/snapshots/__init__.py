"""Memory snapshots in words, as pages and as JSON."""
