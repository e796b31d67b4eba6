"""Administration of a running service by its own user: a Unix socket, its commands, and their client."""
