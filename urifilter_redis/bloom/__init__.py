"""The mathematics of Bloom filters: sizes, shares of the error rate, digests and offsets. No Redis."""
