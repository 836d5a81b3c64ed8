"""The quota API's side that has effects: who may use it, what it changes, and where that is kept."""
