"""Generation: prompts read, tokens drawn, text streamed, a document's memory kept."""
