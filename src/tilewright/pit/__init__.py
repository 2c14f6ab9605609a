"""Dynamic sparsity: micro-tiles, and detectors that list them on the device."""
