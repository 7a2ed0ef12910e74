"""What a layer of the Block-Recurrent stack can carry between segments."""
