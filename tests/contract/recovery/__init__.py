"""What the four clients do after a failure."""
