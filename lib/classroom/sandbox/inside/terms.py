"""What the two sides of the sandbox's wall agree on."""

HIDDEN_PACKAGES = ("groundup",)
"""The reference library can do what the exercises ask for."""
READY = b"ready?"
"""Asked of a zygote, with a socket to answer on; it answers when it can start jobs."""
WITH_COMPILER = b"ready with torch's compiler?"
"""It imports the compiler first, if it has not."""
TOO_MANY_THREADS, TOO_LITTLE_MEMORY = 113, 114
"""With these a process ends after a cell that has left nothing for the cells after it."""
WORKPLACE, SHARED_MEMORY = "/tmp", "/dev/shm"
"""Folders in memory that a submission may write to."""
