"""Memories between windows of a backbone."""
