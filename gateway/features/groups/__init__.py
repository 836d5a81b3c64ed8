"""Groups of clients that share a capacity by guarantees, weights and ceilings."""
