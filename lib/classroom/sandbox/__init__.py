"""Where code from outside runs, and what starts it there."""
