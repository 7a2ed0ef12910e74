"""Ids that mean the same to the data, the models and what writes text."""

BEGIN = -1
"""The id fed to a model before a document's first token; never a target, never stored."""

PADDING = -2
"""The id of a position without a token, where a model is to mask it: labelled documents."""
