"""Optimised forms, each next to the name of its plain counterpart."""
