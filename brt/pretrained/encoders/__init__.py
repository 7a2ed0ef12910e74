"""Pretrained encoders and T5, and their heads. Letters as in `brt.pretrained`."""
