"""Records of a run, and the folder that contains them."""
