"""Pretrained transformers: bodies read from folders in the Hub's format, and memories for them.

Letters as in `brt.models`, and in this folder:

J positions that a query may see: of a window, or of vectors before it and a window
R rows of a table of positions    L layers whose outputs are mixed
G heads of keys and values, each read by H / G heads of queries    E = G * K
O tokens that a window reads again    M vectors that a memory lets a layer see    U hidden units
"""
