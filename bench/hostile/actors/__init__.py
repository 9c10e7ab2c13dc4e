"""The processes that use the server: ``python -m bench.hostile.actors ROLE SETTINGS``."""
