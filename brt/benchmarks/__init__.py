"""Rooms of `brt.benchmark`: what the compiler says of a step, and what a device does with it."""
