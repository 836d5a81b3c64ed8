"""Files that survive a restart: atomic replacement, and locks against a second gateway."""
