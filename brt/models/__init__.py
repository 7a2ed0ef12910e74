"""Models: all that is computed. Capital letters name the same axis in every file of this folder:

B rows of the batch     G blocks of a segment     T tokens of a segment (T = G * W)
W tokens of a block, and reach of the window      J keys a block sees (J = 2 * W)
D width of the model    H heads    K size of a head    A = H * K    C = 2 * A
F width of the feed-forward layer    S states    V rows of the embedding table
R buckets of the relative position bias, rows of a table of distances or positions
Q queries, whoever asks
M slots of an external memory                     P slots that a token picks

In Transformer-XL: M positions remembered    J keys of a segment (J = M + T)
P tokens of a segment being filled    C distances    E width of a bin's vectors    N rare bins
L compressed vectors    Y inputs that one of them stands for    O inputs to be compressed
S memory tokens    X positions of a segment with them (X = S + T + S)
In associative matrices: Y size of a key    L of its features

In recurrent stacks: I inputs of a layer    U its units    Z its gates, a multiple of U
"""
