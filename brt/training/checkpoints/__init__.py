"""Checkpoints: writing, finding a valid one, parameters of another run."""
