"""Readers of the parameters of published implementations."""
