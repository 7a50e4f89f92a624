"""Where steps, passes and micro-batches begin and end."""
