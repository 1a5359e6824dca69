"""The version of the client, in one place; ``plugin.yaml`` repeats it and a test compares the two."""

__version__ = "0.1.0"
