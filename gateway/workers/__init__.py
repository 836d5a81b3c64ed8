"""Several gateway processes on one host that share its ports, under a supervisor that shows them as one gateway."""
