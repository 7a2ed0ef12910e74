"""Checkpoints: writing them, finding one that is whole, taking parameters from another run."""
