"""Memory per rank from a model's shape, without a run."""
