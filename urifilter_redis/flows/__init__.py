"""The flows: everything that a client, the worker or the service does, between its steps. No I/O."""
