"""The language spoken with the server: keys, meta, calls of the scripts, outcomes. No I/O."""
