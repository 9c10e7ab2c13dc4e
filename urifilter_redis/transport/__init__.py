"""Connections to the server, for one caller or shared by asyncio tasks, and the embedded server."""
