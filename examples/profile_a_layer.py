"""Measures every algorithm of one convolution, and tells the best under several memory caps.

    python examples/profile_a_layer.py --channels 64 --size 56 --dtype f32 --layout nchw

In a clone, ``PYTHONPATH=. "$(tools/bootstrap)"`` stands for ``python``.
"""

import argparse

import torch

import torch_cudnn_ext

CAPS = ("0", "1MiB", "64MiB", "4GiB")


def main() -> None:
    """Prints the table of the layer, then a line for each cap."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--size", type=int, default=28, help="height and width of the images")
    parser.add_argument("--dtype", default="f32", choices=("f64", "f32", "f16", "bf16"))
    parser.add_argument("--layout", default="nchw", choices=("nchw", "nhwc"))
    options = parser.parse_args()

    images = f"{options.dtype}[{options.batch},{options.channels},{options.size},{options.size}]"
    filters = f"{options.dtype}[{options.channels},{options.channels},3,3]"
    line = f"conv_fwd x={images}:{options.layout} w={filters}:{options.layout} pad=1"
    profile = torch_cudnn_ext.profile(line, device=options.device)
    profile.print()

    (layer,) = profile.layers
    for cap in CAPS:
        try:
            policy = profile.best(max_workspace=cap)
        except ValueError:
            print(f"at most {cap}: no algorithm")
            continue
        best = layer.find(policy.get("fwd"))
        assert best is not None
        print(f"at most {cap}: {best['algorithm']}, {best['median_ms']:.3f} ms")


if __name__ == "__main__":
    main()
