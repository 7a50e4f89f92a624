"""A TraceFile becomes spans."""
