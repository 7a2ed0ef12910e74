"""Transformer-XL and the Compressive Transformer."""
