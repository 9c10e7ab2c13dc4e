"""What is said to the server and what it answers: keys, meta, calls of the scripts, outcomes. No I/O."""
