"""Parts of which models are built: attention, positions, norms, embeddings."""
