"""Optimizers, learning-rate schedules, and what adjusts them during a run."""
