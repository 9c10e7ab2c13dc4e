"""Storage outside the live filter: backends, documents, packed pieces, closed slices and checkpoints."""
