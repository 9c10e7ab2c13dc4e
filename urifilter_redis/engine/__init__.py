"""The engine of flows: their steps, the session that they share, the loop that retries, and the two drivers."""
