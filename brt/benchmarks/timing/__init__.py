"""Benchmarks that run and are timed."""
