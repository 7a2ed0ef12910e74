"""A step whose segments are divided over devices: its mesh, its loss, two schedules."""
