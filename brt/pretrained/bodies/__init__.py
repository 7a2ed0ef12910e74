"""Pretrained decoders, and the contract of all bodies. Letters as in `brt.pretrained`."""
