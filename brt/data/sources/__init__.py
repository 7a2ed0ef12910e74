"""Sources: each gives the documents of a corpus, split by split."""
