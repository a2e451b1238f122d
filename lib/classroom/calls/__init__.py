"""How a check calls the code under test, here or in another process."""
