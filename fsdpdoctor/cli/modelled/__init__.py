"""Commands, and parts of them, that are about modelled devices."""
