"""Models on disk: checkpoints, and conversion to and from Hugging Face's layouts."""
