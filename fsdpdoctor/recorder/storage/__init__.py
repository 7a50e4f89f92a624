"""Where marks go: clocks, buffers, the run's folder."""
