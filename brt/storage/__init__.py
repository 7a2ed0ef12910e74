"""Locations of files: the configs that brt ships, and paths on a disk or in a bucket."""
