# %% [markdown]
# # Averages
#
# This file is the notebook as text. `# %%` begins a cell of code, `# %% [markdown]`
# one of text. Say here what the notebook is about.

# %%
import torch

from classroom import check

# %% [markdown]
# {{exercise running_mean}}
#
# The line above becomes a heading with number, difficulty, minutes and points, all of
# which are written once, in `checks.py`. Then comes the task, which names the axes as
# messages do:
#
# A model that reads may use what it has read so far, and nothing that comes later.
# Replace each row by the mean of itself and all rows before it. Here is the mean of
# all rows, which is correct for the last row only:

# %%
rows = torch.tensor([[2.0, 0.0], [4.0, 0.0], [9.0, 3.0]])
print(rows.mean(dim=0))

# %% [markdown]
# *Before you code:* what is the first row of the result? And which row is the mean of
# all?
#
# <details><summary>Answers, after you have tried</summary>
#
# The first row of `x`, since nothing comes before it. The last row, which may use all.
# </details>
#
# <details><summary>Hint: no loop</summary>
#
# `cumsum` adds up what came before. How many rows have been added up at each position?
# </details>


# %% exercise="running_mean"
def running_mean(x: torch.Tensor) -> torch.Tensor:
    """Return the mean of the rows up to each position.

    x has the shape (length, width), and so has the result.
    """
    ### BEGIN SOLUTION
    counts = torch.arange(1, len(x) + 1, dtype=x.dtype)
    return x.cumsum(dim=0) / counts[:, None]
    ### END SOLUTION
