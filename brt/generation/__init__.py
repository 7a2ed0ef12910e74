"""Generation: reading prompts, drawing tokens, streaming text, saving a document's memory."""
