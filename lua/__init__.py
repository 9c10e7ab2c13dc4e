"""The Lua scripts: one file a command; sections of ``_*.lua`` are included (see ``urifilter_redis.protocol.scripts``).

``vectors.json`` has known answers, for the tests and for other languages.
"""
