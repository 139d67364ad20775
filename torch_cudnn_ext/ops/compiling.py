"""What ``torch.compile`` must be told of the operators, since it does not read it off them."""

import torch
from torch._functorch import compile_utils

_OPS = torch.ops.torch_cudnn_ext

# Two calls that draw random numbers are not one: PyTorch 2.11 merges equal calls but for those of
# this list, and does not look at the tag of such operators.
compile_utils.rand_ops += [_OPS.dropout, _OPS._dropout, _OPS._rnn]
