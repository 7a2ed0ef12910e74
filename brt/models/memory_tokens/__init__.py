"""Memory tokens around the segments of a backbone."""
