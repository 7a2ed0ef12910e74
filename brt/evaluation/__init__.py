"""Evaluation: every document of a split, read whole, scored token by token."""
