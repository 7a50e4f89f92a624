"""What is made once of all ranks of a run, and kept beside its store."""
