"""A measured run becomes the step that is replayed."""
