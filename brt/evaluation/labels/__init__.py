"""Scores of labelled documents: classes, and answers to questions."""
