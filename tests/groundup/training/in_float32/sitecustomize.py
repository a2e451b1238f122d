"""Lets Muon compute in float32 in workers, whatever the processor has.

In bfloat16, what differs in the last digit is rounded to numbers that differ in the third, and two
ways to add up could be told from a mistake no more.
"""

import torch

torch.cpu._is_avx512_bf16_supported = torch.cpu._is_amx_tile_supported = lambda: False
