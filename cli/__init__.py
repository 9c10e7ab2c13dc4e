"""The command line ``urifilter``: it parses, calls the library, and prints. stdout is data, stderr is talk."""

from .main import main

__all__ = ["main"]
