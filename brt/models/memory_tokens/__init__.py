"""Memory tokens around the segments of a body: where they stand, and how bodies read them."""
