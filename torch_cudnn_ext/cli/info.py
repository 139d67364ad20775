"""``info``: versions, libraries, devices and backends; tables of operators, errata and hints."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import torch
import typer

from torch_cudnn_ext import _C, __version__, knobs, nn, tuning
from torch_cudnn_ext._commands import options
from torch_cudnn_ext._commands.commands import Info
from torch_cudnn_ext._defaults import DEFAULT_TARGET
from torch_cudnn_ext._policy_text import without_options
from torch_cudnn_ext._workload.problems import rewrite
from torch_cudnn_ext.analysis.errata import (
    errata_tables,
    hints_table,
    local_errata_rows,
    local_errata_table,
    verified_text,
    version_number,
)
from torch_cudnn_ext.analysis.html import tables_markdown
from torch_cudnn_ext.analysis.tables import Column, Table, print_tables
from torch_cudnn_ext.cli import checks, running
from torch_cudnn_ext.cli.progress import ProgressBar
from torch_cudnn_ext.cli.store_statistics import print_store_statistics
from torch_cudnn_ext.tuning.measure import checked_device
from torch_cudnn_ext.tuning.worker_pool import worker_pool

MAX_JOBS = 8  # each has a CUDA context, which takes half a GiB of the GPU's memory

_Work = tuple[str, str, list[str], str]  # the arguments of algorithm_counts


def info_command(context: typer.Context, given: Info) -> None:
    """Run ``info``."""
    if given.operators:
        typer.echo(operators_markdown(), nl=False)
        return
    if given.stats:
        print_store_statistics(given.format.value)
        return
    if given.errata or given.hints:
        _print_known(given)
        return
    for name, version in {"torch_cudnn_ext": __version__, **_C.versions()}.items():
        typer.echo(f"{name:15} {version}")
    files_of_cudnn = [Path(path) for path in _C.cudnn_files()]
    shown = files_of_cudnn if given.show_all else dict.fromkeys(f.parent for f in files_of_cudnn)
    for path in shown:
        typer.echo(f"{'libcudnn':15} {path}")
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    files = Path(__file__).parents[1].glob("devices/*.json")
    targets = [file.stem for file in sorted(files)] if given.show_all else [DEFAULT_TARGET]
    devices += [f"target:{name}" for name in targets]
    for device in devices:
        typer.echo(f"{'device':15} {device}: {_C.device_fingerprint(device)}")
    for device in devices:
        if device != "cpu":
            typer.echo(f"{'verified':15} {device}: {verified_text(device)}")
    typer.echo(f"{'tuning store':15} {tuning.store_path() or 'off'}")
    asked = knobs.replay or "off"
    for device in devices:
        if not device.startswith("target:"):
            obstacle = _C.replay_obstacle(f"replay={asked}", device)
            typer.echo(
                f"{'replay':15} {device}: {asked}" + (f", but {obstacle}" if obstacle else "")
            )
    if given.show_all:
        typer.echo()
        print_tables(_backend_tables(given.jobs))


def _print_known(given: Info) -> None:
    """Print the errata or the engine hints for a version of cuDNN and the current GPU."""
    with checks.errors_of("--cudnn"):
        version = version_number(given.cudnn) if given.cudnn is not None else 0
    device = checked_device()
    capability = _C.capability(f"target:{DEFAULT_TARGET}" if device == "cpu" else device)
    if given.format is options.Format.json:
        rows: list[Any] = [*_C.engine_hints(version, capability)]
        if given.errata:
            rows = [*_C.errata(version, 0, capability), *local_errata_rows()]
        typer.echo(json.dumps(rows, indent=1))
        return
    tables = [hints_table(version, capability)]
    if given.errata:
        tables = [*errata_tables(version, capability), *local_errata_table()]
    is_markdown = given.format is options.Format.markdown
    running.print_output(tables_markdown(tables) if is_markdown else tables)


def _backend_tables(jobs: int | None) -> list[Table]:
    """A table for each example problem of the operators."""
    gpu = checked_device()
    if gpu == "cpu":  # nothing is compiled for a target
        gpu, jobs = f"target:{DEFAULT_TARGET}", jobs or 1
    else:
        jobs = jobs or min(len(os.sched_getaffinity(0)), MAX_JOBS)
    examples: list[str] = []
    work: list[_Work] = []
    for operator in _C.operators():
        for example in operator["examples"]:
            for name in operator["passes"]:
                op = f"{operator['family']}_{name}"
                examples.append(example)
                work.append((op, rewrite(example, op=op), operator["backends"], gpu))
    rows: dict[str, list[list[str]]] = {}
    with ProgressBar() as bar:
        results = _counts(jobs, work)
        for done, example in enumerate(examples):
            bar.problem(done, len(work), example)
            rows.setdefault(example, []).extend(next(results))
    # A name is cuDNN's engine or an algorithm; its options are engine knobs, or a math type.
    headings = ("op", "backend", "device", "names", "with options", "on this problem")
    columns = [Column(h, right=h in headings[3:5]) for h in headings]
    return [
        Table(f"algorithms for {example.partition(' ')[2]}", columns, of_example)
        for example, of_example in rows.items()
    ]


def _counts(jobs: int, work: list[_Work]) -> Iterator[list[list[str]]]:
    """The results of `algorithm_counts`, in order, of so many processes; 1 is this process."""
    if jobs == 1:
        yield from starmap(algorithm_counts, work)
        return
    with worker_pool(jobs) as pool:
        for future in [pool.submit(algorithm_counts, *arguments) for arguments in work]:
            yield future.result()


def algorithm_counts(op: str, problem: str, backends: list[str], gpu: str) -> list[list[str]]:
    """For each backend, on the CPU and the GPU, its algorithms and how many take the problem."""
    rows = []
    for device in ("cpu", gpu):
        found = _C.candidates(problem, device)
        for backend in backends:
            here = [c for c in found if c["backend"] == backend]
            states = Counter(c["status"] for c in here)
            if states["ok"] or states["needs a driver"]:
                names = {without_options(c["algorithm"]) for c in here}
                words = ", ".join(f"{count} {state}" for state, count in states.items())
                rows.append([op, backend, device, str(len(names)), str(len(here)), words])
    return rows


def operators_markdown() -> str:
    """The table of operators, which the documents show too.

    The graph API's engines are those that an H200 may run on some of the common problems, listed
    without one; the classic API's algorithms are those that it names.
    """
    headings = ["operator", "modules", "cuDNN's entry points", "cuDNN's algorithms"]
    headings += ["on the CPU", "dtypes", "layouts", "limits"]
    modules: dict[str, list[str]] = {}
    for name in nn.__all__:
        cls = getattr(nn, name)
        if "replaces" in vars(cls):
            modules.setdefault(cls.family, []).append(name)
    rows = []
    for op in _C.operators():
        family = op["family"]
        examples = [_C.canonical_problem(example) for example in op["examples"]]
        by_pass = {}
        on_cpu: set[str] = set()
        for name in op["passes"]:
            problems = [line.replace(f"{family}_fwd", f"{family}_{name}", 1) for line in examples]
            counts = {
                b: _algorithms(problems, f"target:{DEFAULT_TARGET}", b) for b in ("graph", "legacy")
            }
            by_pass[name] = ", ".join(_count(b, len(names)) for b, names in counts.items() if names)
            on_cpu.update(_algorithms(problems, "cpu", "cpu"))
        cells = [f"`{family}`", ", ".join(modules.get(family, [])), op["entry_points"]]
        cells += ["; ".join(f"{name}: {text or 'none'}" for name, text in by_pass.items())]
        cells += [", ".join(sorted(on_cpu)), op["dtypes"], op["layouts"], op["limits"]]
        rows.append(cells)
    return tables_markdown([Table("", [*map(Column, headings)], rows)])


def _count(backend: str, count: int) -> str:
    """The number of algorithms of a backend. Those of the graph API are called engines."""
    return f"{count} legacy" if backend == "legacy" else f"{count} engine{'s' * (count > 1)}"


def _algorithms(problems: list[str], device: str, backend: str) -> set[str]:
    """The names of a backend's algorithms that support at least one of the problems."""
    return {
        without_options(row["algorithm"]).partition(":")[2]
        for problem in problems
        for row in _C.candidates(problem, device)
        if row["backend"] == backend and row["status"] != "unsupported"
    }
