"""Measures the latency of tail readers beside replays that have a lane of their own."""
