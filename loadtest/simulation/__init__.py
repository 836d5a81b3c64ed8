"""Whole gateways under a fake clock and a fake network: `python -m loadtest.simulation`."""
