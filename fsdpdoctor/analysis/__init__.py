"""A run becomes measures: timelines, stalls, budgets, clocks, units, ranks."""
