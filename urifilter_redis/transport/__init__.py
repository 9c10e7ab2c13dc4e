"""Connections to the server, alone or shared by tasks, and the embedded server."""
