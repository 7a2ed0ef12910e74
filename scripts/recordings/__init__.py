"""Replays of recordings, a module for each format; see `check_recording.py`."""
