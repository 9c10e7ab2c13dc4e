"""Work on an archive without Redis: export and import, verification, maintenance."""
