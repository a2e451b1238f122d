"""What a forward pass of every model runs, and nothing else: read it in one sitting."""
