"""Charts, tables and rounding."""
