"""finding."""
