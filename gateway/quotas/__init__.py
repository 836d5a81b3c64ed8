"""The quota engine: arithmetic without I/O or clocks. Each function gets the time as an argument."""
