"""Changes: applied, priced, searched, and as code."""
