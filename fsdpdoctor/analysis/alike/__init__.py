"""What ranks should hold alike: whether they do, and what keeps them so."""
