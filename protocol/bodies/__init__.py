"""One module for each API whose bodies are opened."""
