"""What is computed. Capital letters name the same axis in every file of this folder:

B rows of the batch     G blocks of a segment     T tokens of a segment (T = G * W)
W tokens of a block, and reach of the window      J keys a block sees (J = 2 * W)
D width of the model    H heads    K size of a head    A = H * K    C = 2 * A
F width of the feed-forward layer    S states    V rows of the embedding table
R buckets of the relative position bias           Q queries, whoever asks
I inputs of a recurrent layer     U its units     E its gates, a multiple of U
"""
