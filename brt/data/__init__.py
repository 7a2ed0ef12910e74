"""Data: sources, vocabularies, token stores and the streams of batches over them."""
