"""Pretrained transformers from folders in the Hub's format, and memories for them.

Axes as in `brt.models`, and in this folder:

J positions that a query may see    G heads of keys and values, each of H / G heads of queries
R rows of an embedding matrix of positions or distances    E = G * K
L layers whose outputs are mixed    O tokens that two windows share    U hidden units
M vectors that a memory adds to a layer    N classes    S memory vectors, or states
"""
