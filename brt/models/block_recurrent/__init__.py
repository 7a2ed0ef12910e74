"""Block-Recurrent Transformer: its layers, memories, cell and block feedback."""
