"""Quota arithmetic: pure, every function is told the time."""
