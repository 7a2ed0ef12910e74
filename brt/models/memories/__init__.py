"""Memories: what layers of the Block-Recurrent stack and of Transformer-XL carry on."""
