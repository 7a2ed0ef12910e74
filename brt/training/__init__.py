"""Training: the step, the optimizer, the loop, checkpoints, the run folder."""
