"""Homes of archives outside Redis: a folder or MongoDB; ``engine.home`` says what a home does."""
