"""Lists of experiments with one budget: entries, scales and their runs."""
