"""Two hours of clients that come and go, with faults, reloads and restarts: leaks, lost counts and errors become visible."""
