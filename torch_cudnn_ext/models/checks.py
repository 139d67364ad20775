"""What functions of this package accept as a model."""

import torch
from torch.nn.parameter import is_lazy

from torch_cudnn_ext._torch_internals import compiled_original


def check_model(function: str, model: object) -> None:
    """Raise TypeError if an argument ``model`` is no module."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{function}: argument model: got {model!r:.60} ({type(model).__name__}), "
            "wanted a torch.nn.Module"
        )


def unwrapped_model(function: str, model: torch.nn.Module) -> torch.nn.Module:
    """The module inside the wrappers of ``torch.compile`` and of data parallelism.

    Raises:
        TypeError: ``model`` is no module.
    """
    check_model(function, model)
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        if (original := compiled_original(model)) is not None:
            model = original
        elif isinstance(model, parallel):
            model = model.module
        else:
            return model


def eager_model(function: str, model: torch.nn.Module) -> torch.nn.Module:
    """`unwrapped_model`, checked to run layer by layer.

    Raises:
        TypeError: ``model`` is no module, or TorchScript compiled it or a part of it.
        ValueError: A lazy layer of it is not initialised.
    """
    model = unwrapped_model(function, model)
    for name, module in model.named_modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(map(is_lazy, own)):
            raise ValueError(
                f"{function}: argument model: got {name or 'a model'}, a {type(module).__name__} "
                "that is not initialised, wanted a model that was called once"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"{function}: argument model: got {name or 'a model'} compiled by TorchScript, "
                "wanted the module that it was made of"
            )
    return model
