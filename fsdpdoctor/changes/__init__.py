"""What to change about a run: plans, the units they speak of, and the code."""
