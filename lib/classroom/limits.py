"""What an exercise may use, in a notebook as well as where grades count."""

SECONDS_PER_EXERCISE = 10.0
"""Time for all calls of its checks together."""
