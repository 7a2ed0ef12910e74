"""Pretrained decoders. Letters as in `brt.pretrained`."""
