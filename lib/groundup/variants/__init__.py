"""Alternatives to the core: pure functions, and other kinds of attention, positions and layers."""
