"""The endpoints, one file per concern; ``server.app`` puts them together."""
