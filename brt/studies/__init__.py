"""Questions about one run, or two, that a study answers."""
