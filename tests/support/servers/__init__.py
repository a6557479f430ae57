"""Real servers, and what can be between a client and a server."""
