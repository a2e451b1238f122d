"""What a student calls: the self-check in a terminal, and a library of one's own pieces."""
