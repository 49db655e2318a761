"""The bodies that clients get, built as plain dictionaries in the shape of OpenAI's API."""
