"""Ids with the same meaning in data, models and generation."""

BEGIN = -1
"""The model's input before a document's first token; never a target, never stored."""

PADDING = -2
"""The id of a masked position without a token, in labelled documents."""
