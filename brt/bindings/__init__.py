"""Checks of the files, names and values that gin may bind."""
