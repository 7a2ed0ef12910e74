"""Sentences, tables and charts of what the studies of brt.evaluation measured."""
