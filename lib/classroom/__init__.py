"""The course machinery: release, self-check, grade, report. Knows notebooks, not transformers."""
