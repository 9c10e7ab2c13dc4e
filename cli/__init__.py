"""The command line ``urifilter``: it parses, calls the library, and prints data to stdout and messages to stderr."""

from .main import main

__all__ = ["main"]
