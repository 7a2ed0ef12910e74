"""Where files are: the configs that brt ships, on a disk or in a bucket."""
