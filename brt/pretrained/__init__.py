"""Pretrained transformers: backbones read from folders in the Hub's format, and memories for them.

Letters as in `brt.models`, and in this folder:

J positions that a query may see: of a window, or of vectors before it and a window
R rows of position embeddings    L layers whose outputs are mixed
G heads of keys and values, each of H / G heads of queries    E = G * K
O tokens that two windows share    M vectors that a memory adds to a layer    U hidden units
"""
