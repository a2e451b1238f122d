"""Where grades meet nbgrader: its autograder, gradebook and feedback."""
