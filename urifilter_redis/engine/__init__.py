"""How a flow runs: its steps, the session that it works on, the loop that retries, and the two drivers."""
