"""Memories between windows of a body. Letters as in `brt.pretrained`."""
