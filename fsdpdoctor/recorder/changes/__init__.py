"""A plan applied to the model that a script builds."""
