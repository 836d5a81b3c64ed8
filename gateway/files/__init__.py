"""Atomic replacement of files, locks against a second gateway, and files with a secret."""
