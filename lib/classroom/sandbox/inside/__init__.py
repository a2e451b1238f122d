"""What runs inside the sandbox, beside the code from outside."""
