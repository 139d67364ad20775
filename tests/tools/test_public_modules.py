"""The public modules list their public names, and no others."""

import importlib
import inspect
from types import ModuleType

import pytest

import torch_cudnn_ext
from torch_cudnn_ext import knobs

MODULES = ["", ".analysis", ".knobs", ".models", ".nn", ".ops", ".policy", ".tuning"]


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"torch_cudnn_ext{request.param}")


def test_the_public_names_are_listed(module: ModuleType) -> None:
    names = module.__all__
    assert names == list(dict.fromkeys(names)) and not any(n.startswith("_") for n in names)
    extra = {"torch_cudnn_ext": ["__version__"], "torch_cudnn_ext.knobs": knobs._NAMES}
    assert dir(module) == sorted([*names, *extra.get(module.__name__, [])])


def test_every_public_name_is_there_and_documented(module: ModuleType) -> None:
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), f"{module.__name__}.{name}"


def test_a_star_import_brings_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from torch_cudnn_ext import *", names)
    assert names.keys() - {"__builtins__"} == set(torch_cudnn_ext.__all__)
