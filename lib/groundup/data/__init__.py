"""Training data: texts, dates, synthetic tasks, tokenizers, word vectors, and batches of them."""
