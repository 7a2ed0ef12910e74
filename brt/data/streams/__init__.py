"""The order in which a run reads a token store."""
