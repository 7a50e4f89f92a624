"""Where ticks go: clocks, buffers, the run's folder."""
