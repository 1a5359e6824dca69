"""Stub of a package of hermes-agent, written for this project's tests."""
