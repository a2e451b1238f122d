"""Alternatives to the core: the same results computed differently, and other scores."""
