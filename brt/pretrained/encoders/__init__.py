"""Pretrained encoders and T5, and their heads."""
