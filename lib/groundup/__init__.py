"""A transformer that can be read in one sitting.

Start with `attention`, go on with `masks`, `multihead`, `blocks` and `models`.
"""
