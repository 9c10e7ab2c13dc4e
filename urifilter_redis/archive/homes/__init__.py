"""Homes of archives outside Redis: a folder or MongoDB. ``engine/home.py`` describes their methods."""
