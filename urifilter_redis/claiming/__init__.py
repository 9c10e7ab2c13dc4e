"""The objects that claim, commit, release and reclaim items: one for blocking calls, one for asyncio."""
