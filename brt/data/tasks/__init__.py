"""Tasks whose documents are drawn from a seed."""
