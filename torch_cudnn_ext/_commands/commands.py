"""What each command takes, and what about that is wrong without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from torch_cudnn_ext._commands import options
from torch_cudnn_ext._commands.help import Completion, Help
from torch_cudnn_ext._commands.options import Command, amount, count, option
from torch_cudnn_ext._commands.store import Store
from torch_cudnn_ext._defaults import LAYOUTS, TOLERANCE, VERIFY_TIME_LIMIT_S
from torch_cudnn_ext._grammar import BACKENDS


@dataclass(frozen=True, kw_only=True)
class Profile(Command):
    """Measure every algorithm on every distinct layer, and sum up."""

    source: options.Source
    tensors: options.Tensors
    device: options.Device = None
    target: options.Target = None
    constraints: options.Constraints
    show_all: bool = option(
        False,
        "--all",
        "Also what is excluded, unsupported or failed, and why. json and csv hold it always.",
    )
    top: Annotated[
        int,
        count(
            "--top",
            0,
            "Rows a table, in addition to PyTorch's and the current one; 0: all. Without it a "
            "table of what is listed and not timed has 5. json and csv hold all.",
        ),
    ] = 20
    all_layers: options.AllLayers = False
    shard_text: options.Shard = None
    resume: options.Resume = None
    format: options.FormatOption = options.Format.table
    report: options.Report = None
    search: options.Search
    isolate: options.Isolate = None
    energy: bool = option(
        False,
        "--energy",
        "Also the energy of a call, of the fastest algorithms, on a GPU: over 1.5 seconds each.",
    )
    table: str | None = option(
        None, "--table", "Print the rankings of a file or a store; measure nothing."
    )

    def check(self, context: typer.Context) -> None:
        """Raise BadParameter for options that do not go together."""
        options.forbid_all_layers(context, self.format)
        if self.format in (options.Format.json, options.Format.csv):
            for name in ("show_all", "top"):
                options.forbid(
                    context, name, f"--format {self.format.value}, which holds every row"
                )
        if self.table is not None:
            options.allow_only(
                context, "table", *"problem show_all top all_layers format report".split()
            )
            return
        options.check_isolate(self.isolate)
        self.source.check()


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List what supports a problem, with workspaces, and why the others do not; time nothing."""

    source: options.Source
    tensors: options.Tensors
    device: options.Device = None
    target: options.Target = None
    constraints: options.Constraints
    format: options.FormatOption = options.Format.table

    def check(self, context: typer.Context) -> None:
        """Raise BadParameter for options that do not go together."""
        if self.device is not None and self.target is not None:
            raise typer.BadParameter(
                f"--target: got {self.target!r} with --device {self.device}, wanted one"
            )
        self.source.check()


@dataclass(frozen=True)
class Mode:
    """What `Bench` compares, and with what else."""

    overhead: bool = option(False, "--overhead", "Host time per call instead, on small problems.")
    kernels: bool = option(False, "--kernels", "Also the names of the GPU kernels of both sides.")
    modules: str | None = option(
        None,
        "--modules",
        "Modules of torch.nn against the drop-ins instead: all, or words of their names "
        "(Pool,BatchNorm2d), or mixed, of other sizes. --dtype takes several: f32,f16.",
    )
    compiled: bool = option(
        False,
        "--compiled",
        "With --modules: torch.compile too. With --networks: torch.compile with and without "
        "enable() instead.",
    )
    networks: str | None = option(
        None,
        "--networks",
        "Unmodified networks under enable() against eager PyTorch instead: names as --model takes "
        "them, with commas. --dtype takes several: f32,tf32,f16,bf16.",
    )
    table: str | None = option(
        None,
        "--table",
        "For layers and --networks: a file or a store, to begin with and to add to.",
    )


# The options that each mode of `Bench` takes.
_TAKEN = {
    "overhead": "device format report",
    "modules": "dtype channels_last device policy max_workspace deterministic allow_tf32 format "
    "report compiled",
    "networks": "dtype batch image_size channels_last device policy format report jobs table "
    "knob_search time_budget compiled",
}


@dataclass(frozen=True, kw_only=True)
class Bench(Command):
    """Compare tuned algorithms with PyTorch's best, side by side.

    Single layers and modules are compared by the GPU's time, so tuning ranks by it there:
    --policy is "autotune;prefer=gpu_time" by default, and with --networks "autotune". An algorithm
    that it pins, or leaves to the heuristic, is compared instead of the best.
    """

    source: options.Source
    tensors: options.Tensors
    device: options.Device = None
    constraints: options.Constraints
    shard_text: options.Shard = None
    resume: options.Resume = None
    format: options.FormatOption = options.Format.table
    report: options.Report = None
    search: options.Search
    mode: Mode

    def check(self, context: typer.Context) -> None:
        """Raise BadParameter for options that do not go together."""
        for name, taken in _TAKEN.items():
            if getattr(self.mode, name) not in (False, None):
                options.allow_only(context, name, *taken.split())
                return
        if self.mode.compiled:
            raise typer.BadParameter(
                "--compiled: got it alone, wanted --modules or --networks with it"
            )
        self.source.check()


@dataclass(frozen=True, kw_only=True)
class Tune(Command):
    """Measure ahead of use, and keep the rankings in the tuning store.

    A network runs once on the device. Its problems are those of a training step under
    enable("autotune"), calls by function too.
    """

    source: options.Source
    from_record: bool = option(
        False, "--from-record", "The problems that calls recorded in the store, by on_miss=record."
    )
    tensors: options.Tensors
    device: options.Device = None
    table: str | None = option(
        None,
        "--table",
        "Also a file or a store, to begin with and to add to, for `tuning.import_table`.",
    )
    constraints: options.Constraints
    shard_text: options.Shard = None
    search: options.Search
    isolate: options.Isolate = None
    all_layers: options.AllLayers = False
    format: options.FormatOption = options.Format.table
    report: options.Report = None

    def check(self, context: typer.Context) -> None:
        """Raise BadParameter for options that do not go together."""
        options.forbid_all_layers(context, self.format)
        options.check_isolate(self.isolate)
        self.source.check(from_record=self.from_record)
        if self.from_record and (
            self.tensors != options.Tensors() or self.source.passes or self.shard_text
        ):
            raise typer.BadParameter(
                "--from-record: got options that change or leave out problems, wanted none: "
                "all are tuned as they ran"
            )


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """Compare two results: what is faster, slower, the same, gone or new.

    The files are two of profile, bench or tune with --format json, or two tuning tables. The exit
    code is 1 if a problem, module or network became slower or is gone, otherwise 0.
    """

    before: Annotated[str, typer.Argument(help="A file of results.", show_default=False)]
    after: Annotated[str, typer.Argument(help="A later file.", show_default=False)]
    tolerance: Annotated[
        float, amount("--tolerance", 0, "The relative difference that counts as none.")
    ] = TOLERANCE
    show_all: bool = option(
        False, "--all", "Also what is the same. json, csv and the report hold it always."
    )
    format: options.FormatOption = options.Format.table
    report: options.Report = None


@dataclass(frozen=True, kw_only=True)
class Coverage(Command):
    """Count the calls of a network that cuDNN computes, and the others by reason."""

    model: options.Model
    tensors: options.Tensors
    device: options.Device = None
    train: options.Train = True
    backends: str = option(
        "cudnn",
        "--backends",
        "cudnn, graph, legacy, aten or cpu. cuDNN's need a GPU.",
        *BACKENDS,
    )


@dataclass(frozen=True, kw_only=True)
class Explain(Command):
    """Tell what every layer of an unmodified network runs, and why."""

    model: options.Model
    train: options.Train = True
    tensors: options.Tensors
    device: options.Device = None
    policy: options.PolicyText = ""
    measure: bool = option(True, "--measure/--no-measure", "Time each algorithm that runs.")
    all_layers: options.AllLayers = False
    format: options.FormatOption = options.Format.table
    report: options.Report = None

    def check(self, context: typer.Context) -> None:
        """Raise BadParameter for options that do not go together."""
        options.forbid_all_layers(context, self.format)


@dataclass(frozen=True, kw_only=True)
class Optimize(Command):
    """Make the fastest version of a network for inference or training, and tell how fast it is.

    For inference batch norm is folded, layers take in sums and activations, all is tuned, compiled
    and captured in a CUDA graph. For training layers are tuned forward and backward. The result is
    timed by turns with PyTorch's layers.
    """

    model: options.Model
    tensors: options.Tensors
    device: options.Device = None
    constraints: options.Constraints
    train: bool = option(
        False,
        "--train/--inference",
        "For training, forward and backward of each step, or for inference. By default for "
        "inference.",
    )
    layout: str = option(
        "keep",
        "--layout",
        "keep, contiguous, channels_last, or search for the fastest: one of the last two, or in "
        "inference the best for each layer.",
        *LAYOUTS,
        "search",
    )
    cuda_graph: bool | None = option(
        None,
        "--cuda-graph/--no-cuda-graph",
        "Replay CUDA graphs. Without either: in inference.",
    )
    torch_compile: bool | None = option(
        None,
        "--torch-compile/--no-torch-compile",
        "Let torch.compile make the code between the layers. Without either: in inference on a "
        "GPU.",
    )
    max_error: Annotated[
        float | None,
        amount(
            "--max-error",
            0,
            "An error if results are worse than this, against float64, relative to the largest.",
        ),
    ] = None
    peak_memory: str | None = option(
        None, "--peak-memory", "The most memory of a call on a GPU, such as 4GiB; see optimize()."
    )
    pareto: str | None = option(
        None,
        "--pareto",
        "Also print the least time for each bound of the workspace, and draw it: .svg, or .png by "
        "cairosvg.",
    )
    search: options.Search
    all_layers: options.AllLayers = False
    report: options.Report = None
    save: str | None = option(
        None, "--save", "Write a recipe for `load_optimized` to this file, without weights."
    )


@dataclass(frozen=True, kw_only=True)
class Info(Command):
    """Print versions, the folder of cuDNN, devices, and the tuning store."""

    show_all: bool = option(
        False, "--all", "Also the files of cuDNN, and each backend with its numbers of algorithms."
    )
    operators: bool = option(False, "--operators", "The table of operators alone, as Markdown.")
    errata: bool = option(
        False,
        "--errata",
        "Known defects of cuDNN and PyTorch alone, and whether their guards are on; and the local "
        "ones: algorithms that cost a process here and are not tried again.",
    )
    hints: bool = option(
        False,
        "--hints",
        "Engines that untuned calls name by number alone, and whether they do.",
    )
    stats: bool = option(
        False,
        "--stats",
        "What the tuning stores hold alone: problems by device and rows by age, and which serve "
        "this machine, or why not.",
    )
    cudnn: str | None = option(
        None, "--cudnn", "Of --errata and --hints: for this version, not the loaded."
    )
    format: options.Format = option(
        options.Format.table, "--format", "How to print --errata, --hints and --stats."
    )
    jobs: Annotated[
        int | None,
        count(
            "--jobs",
            1,
            "Of --all: processes that build every engine for a GPU; by default one a core, at most "
            "8.",
        ),
    ] = None

    def check(self, context: typer.Context) -> None:
        """Raise BadParameter for options that do not go together."""
        if self.operators:
            options.allow_only(context, "operators")
        elif self.stats:
            options.allow_only(context, "stats", "format")
        elif self.errata or self.hints:
            options.allow_only(context, "errata" if self.errata else "hints", "cudnn", "format")
            if self.format is options.Format.csv:
                raise typer.BadParameter("--format: got 'csv', wanted one of table, json, markdown")
        else:
            options.forbid(context, "cudnn", "neither --errata nor --hints, which it is for")
            options.forbid(context, "format", "none of --errata, --hints and --stats")
            if not self.show_all:
                options.forbid(context, "jobs", "no --all, which it is for")


@dataclass(frozen=True, kw_only=True)
class Verify(Command):
    """See whether known defects are still there; exit code 1 if one is that counts as fixed."""

    errata: bool = option(
        False,
        "--errata",
        "Run each known defect of cuDNN and PyTorch in a process of its own, with its guard "
        "lifted.",
    )
    only: str | None = option(None, "--only", "Only these errata, by id: a,b,…")
    time_limit: Annotated[
        int, count("--time-limit", 1, "Seconds for each process, with PyTorch's import.")
    ] = VERIFY_TIME_LIMIT_S
    jobs: Annotated[
        int, count("--jobs", 1, "How many run at a time. They share the GPU's memory.")
    ] = 4
    device: options.Device = None
    json_file: str | None = field(
        default=None,
        metadata={
            "option": typer.Option("--json", metavar="FILE", help="Also write the findings here.")
        },
    )

    def check(self, context: typer.Context) -> None:
        """Raise BadParameter if nothing is asked for."""
        if not self.errata:
            raise typer.BadParameter("--errata: not given, wanted it: it says what to verify")


COMMANDS: dict[str, type[Command]] = {
    "profile": Profile,
    "list": List,
    "bench": Bench,
    "tune": Tune,
    "compare": Compare,
    "coverage": Coverage,
    "explain": Explain,
    "optimize": Optimize,
    "info": Info,
    "verify": Verify,
    "store": Store,
    "help": Help,
    "completion": Completion,
}
