"""Which setting serves best: search spaces, cost model, measurement, search, and what was found, on disk."""
