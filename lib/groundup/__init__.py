"""A transformer that can be read in one sitting.

Read `core`, whose introduction gives the order. The other packages train, run, measure, store or
vary what is in it.
"""
