"""Makes the gallery in `traces/`: real runs, each with one thing wrong, or nothing."""
