"""What a forward pass of every model runs, and nothing else: read it in one sitting.

In this order, nothing is used before it is read, apart from `require`, which refuses what breaks a
rule and can be taken on trust until the end of `config`:

1. `masks`: who may attend to whom, and the softmax that obeys.
2. `attention`: one attention, as a formula and by torch's kernel.
3. `layers`: what works on each token alone, the norms and the feed-forward network.
4. `positions`: how a token knows its position: tables, rotations, a bias on the scores.
5. `cache`: the keys and values of the tokens so far.
6. `multihead`: several attentions side by side, which use all of the above.
7. `blocks`: attention and feed-forward network, each with its norm and residual connection.
8. `embedding`: from token ids to vectors.
9. `config`: the sizes and choices that describe a model, and the checks.
10. `models`: the three models, and how their weights are drawn.
"""
