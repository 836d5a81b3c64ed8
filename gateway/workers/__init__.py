"""Several gateway processes on one host that share its ports: who runs them, and how they look like one."""
