"""A script as rank 0 of many, over a modelled network."""
