"""A transformer that can be read in one sitting.

`core` is what to read, and says in which order. What is outside `core` trains, runs, measures,
stores or varies what is in it.
"""
