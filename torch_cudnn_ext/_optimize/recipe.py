"""What `optimize` found, without weights, and the file that keeps it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from torch import Tensor

from torch_cudnn_ext._defaults import LAYOUTS
from torch_cudnn_ext._files import read_text, toml_string, write_text
from torch_cudnn_ext._optimize.layouts import in_layout
from torch_cudnn_ext._optimize.rewriting import Rewrites
from torch_cudnn_ext.policy import text_for_all
from torch_cudnn_ext.tuning.store import held_rows
from torch_cudnn_ext.tuning.store_rows import Row, parse_rows

NEW_SHAPES = ("heuristic", "autotune")
_FORMAT = 3


class Way(StrEnum):
    """A way to compute the network."""

    plain = "PyTorch's layers"
    plain_graph = "PyTorch's layers in a CUDA graph"
    compiled = "torch.compile"
    compiled_graph = "torch.compile in a CUDA graph"
    optimized = "optimized layers"
    optimized_graph = "optimized layers in a CUDA graph"
    mixed = "optimized layers and torch.compile"
    mixed_graph = "optimized layers and torch.compile in a CUDA graph"

    @property
    def in_graph(self) -> bool:
        """Whether calls replay CUDA graphs."""
        return self.name.endswith("_graph")

    @property
    def without_graph(self) -> Way:
        """The same without CUDA graphs."""
        return Way[self.name.removesuffix("_graph")]

    @property
    def uncompiled(self) -> Way:
        """The same without ``torch.compile``."""
        return Way[self.name.replace("mixed", "optimized").replace("compiled", "plain")]

    @property
    def is_compiled(self) -> bool:
        """Whether ``torch.compile`` compiles it."""
        return self.without_graph in (Way.compiled, Way.mixed)

    @property
    def is_pytorchs(self) -> bool:
        """Whether none of our layers run."""
        return self.without_graph in (Way.plain, Way.compiled)


@dataclass
class Recipe:
    """How to make the network again.

    Attributes:
        policy: The constraints.
        layout: Of images and filters.
        layouts: Of layers, by name, if they do not all compute in ``layout``.
        on_new_shape: How layers select their algorithms if the sizes are not in ``shapes``.
        cuda_graph: Whether calls may replay CUDA graphs.
        torch_compile: Whether ``torch.compile`` may compile the network.
        form: The form of the example; see `form_of`.
        layers: A digest of the model's layers and their shapes.
        autocast: The dtypes of autocast around `optimize`.
        untraced: Why the model's own code runs; empty if it was traced.
        shapes: The devices and sizes of the inputs that were tuned.
        problems: The problems that were tuned.
        separate: Layers that take in nothing where the network is compiled.
        left: Layers that are PyTorch's where the network is compiled.
        train: Whether the network is for training.
    """

    policy: str
    layout: str
    on_new_shape: str
    cuda_graph: bool
    torch_compile: bool
    form: str
    layers: str
    autocast: str
    untraced: str = ""
    shapes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    separate: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    train: bool = False
    layouts: dict[str, str] = field(default_factory=dict)

    @property
    def tuned_policy(self) -> str:
        """The policy of layers for the sizes in ``shapes``; calls measure only if that is asked."""
        return f"{'autotune' if self.on_new_shape == 'autotune' else 'tuned'};{self.policy}"

    @property
    def untuned_policy(self) -> str:
        """The policy of layers for other sizes."""
        return f"{self.on_new_shape};{self.policy}"

    def in_layout(self, tensor: Tensor) -> Tensor:
        """A tensor of images or filters in the layout, and any other as it is."""
        return tensor if self.layout == "keep" else in_layout(tensor, self.layout)

    def write(self, path: str | os.PathLike[str], network: str, way: Way, done: Rewrites) -> None:
        """Write a file of TOML, which also holds the rankings of the problems.

        Raises:
            TypeError: ``path`` is no path.
            OSError: The file cannot be written.
        """
        held = [row for row in held_rows() if row.entry["problem"] in set(self.problems)]
        lines = [
            "# How torch_cudnn_ext.optimize made a network; load_optimized reads it.",
            f"format = {_FORMAT}",
            f"network = {toml_string(network)}",
            f"policy = {toml_string(self.policy)}",
            f"layout = {toml_string(self.layout)}",
            f"on_new_shape = {toml_string(self.on_new_shape)}",
            f"cuda_graph = {str(self.cuda_graph).lower()}",
            f"torch_compile = {str(self.torch_compile).lower()}",
            f"form = {toml_string(self.form)}",
            f"layers = {toml_string(self.layers)}",
            f"autocast = {toml_string(self.autocast)}",
            f"untraced = {toml_string(self.untraced)}",
            f"way = {toml_string(way.name)}",
            f"train = {str(self.train).lower()}",
            *_list_lines("shapes", self.shapes),
            *_list_lines("problems", self.problems),
            *_list_lines("separate", self.separate),
            *_list_lines("left", self.left),
            *_list_lines("rankings", [row.line().decode().rstrip() for row in held]),
            "",
            "[layouts]",
            *(f"{toml_string(name)} = {toml_string(one)}" for name, one in self.layouts.items()),
            "",
            "[rewrites]",
        ]
        for kind in fields(done):
            lines += _list_lines(kind.name, getattr(done, kind.name))
        write_text(path, "\n".join(lines) + "\n")


@dataclass
class RecipeFile:
    """What a file holds."""

    network: str
    recipe: Recipe
    way: Way
    rewrites: Rewrites
    rankings: list[Row]


def read_recipe(path: str | os.PathLike[str]) -> RecipeFile:
    """Read what `Recipe.write` wrote.

    Raises:
        TypeError: ``path`` is no path.
        OSError: The file cannot be read.
        ValueError: It is no recipe; the message says why.
    """
    text = read_text(path)
    try:
        return _parsed(tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{os.fspath(path)}: got no recipe, wanted what OptimizedModel.save wrote: {error}"
        ) from error


def _parsed(table: dict[str, Any]) -> RecipeFile:
    _check_keys(table, ("format", "network", "way", "rankings", "rewrites", *_RECIPE), "a recipe")
    if table["format"] != _FORMAT:
        raise ValueError(f"format is {table['format']!r}, wanted {_FORMAT}")
    for name, is_valid, wanted in _RULES:
        if not is_valid(table[name]):
            raise ValueError(f"{name} is {table[name]!r:.80}, wanted {wanted}")
    rewrites = table["rewrites"]
    names = [kind.name for kind in fields(Rewrites)]
    if not isinstance(rewrites, dict):
        raise ValueError(f"rewrites is {rewrites!r:.80}, wanted a table")
    _check_keys(rewrites, names, "rewrites")
    for name in names:
        if not _is_texts(rewrites[name]):
            raise ValueError(f"{name} is {rewrites[name]!r:.80}, wanted a list of texts")
    recipe = Recipe(**{name: table[name] for name in _RECIPE})
    recipe.policy = text_for_all(recipe.policy)
    rankings = parse_rows(
        (f"rankings, {n}", line.encode()) for n, line in enumerate(table["rankings"], 1)
    )
    return RecipeFile(table["network"], recipe, Way[table["way"]], Rewrites(**rewrites), rankings)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_layouts(value: object) -> bool:
    return isinstance(value, dict) and all(one in LAYOUTS[1:] for one in value.values())


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_RECIPE = tuple(kind.name for kind in fields(Recipe))
# Of a key: whether a value is right, and what is wanted.
_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("network", _is_text, "a text"),
    ("policy", _is_text, "a policy text"),
    ("form", _is_text, "a text"),
    ("layers", _is_text, "a text"),
    ("autocast", _is_text, "a text"),
    ("untraced", _is_text, "a text"),
    ("layout", LAYOUTS.__contains__, f"one of {', '.join(LAYOUTS)}"),
    ("on_new_shape", NEW_SHAPES.__contains__, f"one of {', '.join(NEW_SHAPES)}"),
    ("layouts", _are_layouts, f"a table of {' and '.join(LAYOUTS[1:])}"),
    ("cuda_graph", _is_flag, "true or false"),
    ("torch_compile", _is_flag, "true or false"),
    ("train", _is_flag, "true or false"),
    ("way", [w.name for w in Way].__contains__, f"one of {', '.join(w.name for w in Way)}"),
    ("shapes", _is_texts, "a list of texts"),
    ("problems", _is_texts, "a list of texts"),
    ("separate", _is_texts, "a list of texts"),
    ("left", _is_texts, "a list of texts"),
    ("rankings", _is_texts, "a list of texts"),
)


def _check_keys(table: dict[str, Any], wanted: tuple[str, ...] | list[str], what: str) -> None:
    if table.keys() != set(wanted):
        raise ValueError(f"{what} has the keys {', '.join(table)}, wanted {', '.join(wanted)}")


def _list_lines(name: str, texts: list[str]) -> list[str]:
    return [f"{name} = [", *(f"    {toml_string(text)}," for text in texts), "]"]
