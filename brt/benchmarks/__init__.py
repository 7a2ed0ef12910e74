"""Measurements of `brt.benchmark`."""
