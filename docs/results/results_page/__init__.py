"""The page of results: archived runs, the gain of recurrence, where it is, and the page itself."""
