"""All that a model's forward pass runs, and nothing else: read it in one sitting.

In this order, nothing is used before it has been read:

1. `config`: the sizes and settings that describe a model, and how they are checked. Skim it.
2. `masks`: which tokens may attend to which, and the softmax that applies a mask.
3. `attention`: scaled dot-product attention, step by step and by torch's kernel.
4. `layers`: the norms and the feed-forward network, which act on each token separately.
5. `positions`: tables, rotations and a bias that represent the order of the tokens.
6. `cache`: keys and values of earlier tokens.
7. `multihead`: several attention heads side by side, built from all this.
8. `blocks`: attention and a feed-forward network, with their norms and residual connections.
9. `embedding`: from token ids to vectors.
10. `models`: the three models, and their initial weights.
"""
