"""Generation: the decoding loop, sampling, beam search, caches, and quantised weights."""
