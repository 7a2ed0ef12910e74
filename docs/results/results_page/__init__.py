"""The results page: archived runs, and improvements of recurrence over the baseline."""
