"""The parts of an exercise: answers, cases, checks, diagnosis and the report."""
