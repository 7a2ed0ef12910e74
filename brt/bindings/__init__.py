"""What gin may bind: which files, which names, which values."""
