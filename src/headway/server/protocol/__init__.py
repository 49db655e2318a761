"""The shapes of the bodies that clients send. What they may ask for is decided in ``server.spec``."""
