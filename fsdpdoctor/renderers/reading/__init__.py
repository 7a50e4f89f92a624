"""How a report is read: its order, its words, its bars, and without its names."""
