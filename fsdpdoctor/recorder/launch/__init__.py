"""How recording starts and ends: torchrun, signals, the profiler."""
