"""A training run: its checks, its data, and the loop."""
