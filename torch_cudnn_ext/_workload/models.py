"""Networks by name, with inputs for them."""

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torch_cudnn_ext import _C
from torch_cudnn_ext._defaults import IMAGE_SIZE, MODEL_BATCH
from torch_cudnn_ext._workload.problems import DTYPES
from torch_cudnn_ext._workload.pytree import is_floating, map_tensors
from torch_cudnn_ext._workload.running import call_model
from torch_cudnn_ext._workload.unet import UNet

FRAMES = 16  # of the clips that a network for video gets
OWN = {"unet": UNet}  # networks that torchvision does not have


def load_model(
    name: str,
    *,
    batch: int = MODEL_BATCH,
    image_size: int = IMAGE_SIZE,
    dtype: str | None = None,
    channels_last: bool = False,
    device: str = "meta",
) -> tuple[nn.Module, Any]:
    """A network and inputs for it, by default on the meta device, where only shapes count.

    A network with lazy layers runs once, on the device on which it was made.

    Args:
        name: A network of torchvision that takes images (``resnet18``), with random weights,
            ``unet``, or ``module:callable``, which gives a module or a pair of a module and its
            inputs.
        batch: The number of images of three channels, unless the callable gives inputs.
        image_size: Their height and width in pixels.
        dtype: ``f64``, ``f32``, ``f16`` or ``bf16``, of the network and its inputs. By default
            torchvision's are f32, and what a callable gives keeps its own.
        channels_last: Whether the 4-D and 5-D tensors of the network and its inputs are
            channels-last.
        device: The device of both. On another device than meta, values are random.

    Raises:
        ValueError: There is no such network.
    """
    frames: tuple[int, ...] = ()
    if ":" in name:
        model, inputs = _model_of_callable(name)
    elif name in OWN:
        with torch.device(device):
            model, inputs = OWN[name](), None
        dtype = dtype or "f32"
    else:
        (model, frames), inputs = _torchvision_model(name, device), None
        dtype = dtype or "f32"
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype: got {dtype!r}, wanted one of {', '.join(DTYPES)}")
    torch_dtype = None if dtype is None else DTYPES[dtype]
    has_lazy_layers = any(map(is_lazy, (*model.parameters(), *model.buffers())))
    if inputs is None:
        place = None if has_lazy_layers else device
        inputs = torch.randn(batch, 3, *frames, image_size, image_size, device=place)
        inputs = inputs.to(next(filter(is_floating, model.parameters()), inputs).dtype)
    if has_lazy_layers:  # a lazy parameter that is moved to the meta device is lazy no more
        with torch.no_grad():
            call_model(model, inputs)

    def placed(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, torch_dtype if is_floating(tensor) else None)
        return in_channels_last(tensor) if channels_last else tensor

    model = model.to(device, torch_dtype)
    if channels_last:
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = in_channels_last(tensor.data)
    return model, map_tensors(placed, inputs)


def in_channels_last(tensor: Tensor) -> Tensor:
    """A 4-D or 5-D tensor channels-last, and any other as it is."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.to(memory_format=formats.get(tensor.dim(), torch.preserve_format))


def _torchvision_model(name: str, device: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The model, and the sizes of an input between its channels and its height."""
    try:
        from torchvision import models
    except ImportError as error:
        raise ValueError(f"got {name!r}, which needs torchvision: {error}") from error
    # Of each kind: the sizes before the height, and the arguments that keep weights from loading.
    kinds: list[tuple[Any, tuple[int, ...], dict[str, None]]] = [
        (models, (), {}),
        (models.segmentation, (), {"weights_backbone": None}),
        (models.video, (FRAMES,), {}),
    ]
    known = []
    for module, frames, arguments in kinds:
        names = models.list_models(module=module)
        known += names
        if name in names:
            with torch.device(device):
                return models.get_model(name, weights=None, **arguments), frames
    wanted = _C.wanted_words(name, known, "torchvision.models.list_models()")
    raise ValueError(
        f"got {name!r}, wanted module:callable, {', '.join(OWN)} or one of torchvision's: {wanted}"
    )


def _model_of_callable(name: str) -> tuple[nn.Module, Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith("."):
        raise ValueError(f"got {name!r}, wanted module:callable")
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"got {name!r}, wanted module:callable: {error}") from error
    if not callable(make):
        raise ValueError(f"got {name!r}, a {type(make).__name__}, wanted module:callable")
    if isinstance(make, nn.Module):
        raise ValueError(f"got {name!r}, a {type(make).__name__}, wanted what makes a module")
    made = make()
    if isinstance(made, tuple) and len(made) != 2:
        raise ValueError(
            f"got {name!r}, which gave {len(made)} values, wanted a module, or a module and its "
            "inputs"
        )
    model, inputs = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, nn.Module):
        raise ValueError(f"got {name!r}, which gave a {type(model).__name__}, wanted a module")
    return model, inputs
