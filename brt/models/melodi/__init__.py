"""MELODI."""
