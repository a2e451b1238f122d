"""Models and training that use functions written by a student."""
