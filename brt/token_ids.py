"""Ids that mean the same to the data, the models and what writes text."""

BEGIN = -1
"""The id fed to a model before a document's first token; never a target, never stored."""
