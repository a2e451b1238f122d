"""A transformer that can be read in one sitting.

Start with `core.attention`, go on with `core.masks`, `multihead`, `blocks` and `models`. What is
outside `core` trains, runs, measures, stores or varies what is in it.
"""
