"""Models. A capital letter names the same axis in every file of this folder:

B batch    T tokens of a segment    G blocks of a segment    W tokens of a block: the window
D width    H heads    K size of a head    A = H * K    C = 2 * A    F width of the MLP
S states    V vocabulary    Q queries    J keys of a block (J = 2 * W)
R buckets or distances of a position bias    M slots of an external memory    P slots picked of them

Transformer-XL: M positions remembered    J = M + T keys    P tokens of a segment being filled
C distances    E width of a bin's vectors    N rare bins    L compressed vectors    Y inputs of one
O inputs to be compressed    S memory tokens    X = S + T + S positions of a segment with them

Associative matrices: Y size of a key    L of its features

Recurrent networks: I inputs of a layer    U units    Z gates, a multiple of U
"""
