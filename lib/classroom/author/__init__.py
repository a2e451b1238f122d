"""Tools for authors: notebooks as text, releases, the inventory, the kill matrix."""
