"""Tunes a network once, keeps the rankings in a file, and uses the file in a new process.

    python examples/tune_and_ship.py --table tuning.jsonl

The second process is this script again, with ``--use``. It measures nothing but what was too noisy
to be kept (``unstable``).
In a clone, ``PYTHONPATH=. "$(tools/bootstrap)"`` stands for ``python``.
"""

import argparse
import subprocess
import sys
import time

import torch
from torch import Tensor, nn

import torch_cudnn_ext
from torch_cudnn_ext import tuning


def network(device: str) -> tuple[nn.Module, Tensor]:
    """A small network of PyTorch's layers, and images [8, 3, 32, 32] for it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.Flatten(), nn.Linear(32 * 16 * 16, 10),
    ).to(device)  # fmt: skip
    return model, torch.randn(8, 3, 32, 32, device=device)


def tune(device: str, table: str, jobs: int) -> None:
    """Measures what a training step needs, and writes the table."""
    start = time.perf_counter()
    best = tuning.tune_model(*network(device), jobs=jobs)
    for problem, row in best.items():
        print(f"{problem.split()[0]:16} {row['algorithm']:40} {row['median_ms']:.3f} ms")
    tuning.export_table(table)
    print(f"tuned {len(best)} problems in {time.perf_counter() - start:.1f} s")


def use(device: str, table: str) -> None:
    """Trains one step with what the table holds, and tells why each algorithm ran."""
    tuning.import_table(table)
    model, images = network(device)
    torch_cudnn_ext.enable("autotune")
    start = time.perf_counter()
    model(images).sum().backward()
    print(f"first step: {time.perf_counter() - start:.3f} s")
    for op in ("conv_fwd", "conv_bwd_filter", "batch_norm_fwd", "pool_fwd"):
        decision = torch_cudnn_ext.last_decision(op)
        assert decision is not None
        print(f"{op:16} {decision.algorithm:40} {decision.why}")
    torch_cudnn_ext.disable()


def main() -> None:
    """Tunes, then starts the process that uses the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--table", default="tuning.jsonl")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile side by side")
    parser.add_argument("--use", action="store_true", help="use the table, and measure nothing")
    options = parser.parse_args()
    if options.use:
        use(options.device, options.table)
        return
    tune(options.device, options.table, options.jobs)
    arguments = ["--device", options.device, "--table", options.table, "--use"]
    subprocess.run([sys.executable, __file__, *arguments], check=True)


if __name__ == "__main__":
    main()
