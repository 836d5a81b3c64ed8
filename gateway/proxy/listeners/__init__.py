"""Addresses that clients connect to, and accepted connections up to their first request."""
