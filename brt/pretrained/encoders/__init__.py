"""Pretrained encoders and T5, and the models that read labelled documents with them.

Letters as in `brt.pretrained`, and in this folder:

N classes    S memory vectors    R rows of a table of distances    U units of a head
"""
