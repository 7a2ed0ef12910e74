"""Records: what a run reports, and the folder that holds it."""
