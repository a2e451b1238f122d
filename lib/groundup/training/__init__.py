"""Training: the loop, optimizers, several processes, a baseline, and the command line's tasks."""
