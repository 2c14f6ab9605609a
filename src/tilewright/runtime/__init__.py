"""Building, caching and launching compiled kernels. Torch begins here."""
