"""Training: the step, the optimizer, checkpoints, the run folder."""
