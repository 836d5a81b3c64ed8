"""Draws how three groups share a capacity while they start and stop."""
