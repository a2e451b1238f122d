"""What a forward pass of every model runs, and nothing else: read it in one sitting.

In this order nothing is used before it has been read:

1. `config`: the sizes and choices that describe a model, and how a wrong one is refused. Skim it.
2. `masks`: who may attend to whom, and the softmax that obeys.
3. `attention`: one attention, as a formula and by torch's kernel.
4. `layers`: what works on each token alone: the norms and the feed-forward network.
5. `positions`: tables, rotations and a bias, by which a token knows where it stands.
6. `cache`: keys and values of the tokens so far.
7. `multihead`: several attentions side by side, made of all this.
8. `blocks`: attention and feed-forward network, with their norms and residual connections.
9. `embedding`: from token ids to vectors.
10. `models`: the three models, and how their weights are drawn.
"""
