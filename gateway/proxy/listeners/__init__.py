"""Listening sockets for clients, and accepted connections up to the start of their session."""
