"""How parameters are found: the step, the optimizer, the loop, checkpoints, the run folder."""
