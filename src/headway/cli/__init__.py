"""The ``headway`` command. Start at ``main``."""
