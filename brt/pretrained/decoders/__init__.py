"""Pretrained decoders."""
