"""Grading a class: submissions in, verdicts and reports out."""
