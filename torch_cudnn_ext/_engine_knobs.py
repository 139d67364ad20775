"""The names of engine knobs: those of `cudnnBackendKnobType_t` in cuDNN's header.

Nothing here imports PyTorch. Texts of algorithms hold numbers (``k2=1``), and so do files.
"""

import re
from collections.abc import Iterable

# By number: the enumerators of cuDNN 9.26.
ENGINE_KNOBS = (
    "split_k", "swizzle", "tile_size", "use_tex", "edge", "kblock", "ldga", "ldgb", "chunk_k",
    "split_h", "wino_tile", "multiply", "split_k_buf", "tilek", "stages", "reduction_mode",
    "cta_split_k_mode", "split_k_slc", "idx_mode", "sliced", "split_rs", "singlebuffer", "ldgc",
    "specfilt", "kernel_cfg", "workspace", "tile_cga", "tile_cga_m", "tile_cga_n", "block_size",
    "occupancy", "array_size_per_thread", "num_c_per_block", "split_cols", "tile_rows", "tile_cols",
    "load_size", "cta_count", "stream_k", "split_p_slc", "tile_m", "tile_n", "warp_spec_cfg",
    "swap_ab", "input_tma_enable", "output_tma_enable",
)  # fmt: skip

_NUMBERS = {name: number for number, name in enumerate(ENGINE_KNOBS)}
_ALGORITHM = re.compile(r"graph:eng\d+/[^\s;,]+")
_BY_NUMBER = re.compile(r"/k(\d+)=")
_BY_NAME = re.compile(r"/(\w+)=")


def with_numbers(text: str) -> str:
    """A policy or an algorithm with the numbers of engine knobs in place of their names.

    A word that is no name stays as it is.
    """
    if "graph:" not in text:
        return text

    def numbered(knob: re.Match[str]) -> str:
        number = _NUMBERS.get(knob[1])
        return knob[0] if number is None else f"/k{number}="

    return _ALGORITHM.sub(lambda found: _BY_NAME.sub(numbered, found[0]), text)


def knob_legend(texts: Iterable[str]) -> str:
    """The names of the engine knobs in texts: ``k2 is tile_size``; empty without any."""
    found = {
        int(number)
        for text in texts
        for algorithm in _ALGORITHM.findall(text)
        for number in _BY_NUMBER.findall(algorithm)
    }
    named = (f"k{n} is {ENGINE_KNOBS[n]}" for n in sorted(found) if n < len(ENGINE_KNOBS))
    return ", ".join(named)
