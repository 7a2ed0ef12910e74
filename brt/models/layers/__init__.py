"""Parts of models: attention, positions, norms, embeddings."""
