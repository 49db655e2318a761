"""The version, for parts that may not import the package's front."""

__version__ = "0.1.0"
