"""The version of seer; part of every record."""

__version__ = "0.1.0"
