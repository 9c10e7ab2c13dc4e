"""Homes of archives outside Redis: a folder or MongoDB. ``engine/backend.py`` describes their methods."""
