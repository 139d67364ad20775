"""Fixtures and options that all tests share."""

import os
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_config_var
from typing import Any, TypeVar

import pytest
import torch
from helpers import LINE, PASSES
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torch_cudnn_ext import _C, _libraries, knobs, ops, profile
from torch_cudnn_ext._files import ERRATA_VARIABLE, STORE_VARIABLE
from torch_cudnn_ext.analysis.errata import version_number
from torch_cudnn_ext.analysis.results import Profile
from torch_cudnn_ext.tuning import local_errata
from torch_cudnn_ext.tuning.tasks import fp32_switches

ROOT = Path(__file__).resolve().parents[1]  # of the repository
# Where setup.py builds for this torch and this Python.
BUILD = ROOT / "build" / f"{_libraries.torch_tag(torch.__version__)}-{get_config_var('SOABI')}"
# Algorithms with lower numerics are checked too, against the tolerance that their notes state.
REASONS = 10  # for skips, at most so many are told
EVERY_NUMERICS = "allow_tf32;allow_down_convert;allow_reduced_range"
CUDA_MARKS = (
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
)
BIG_CUDA_MARKS = (*CUDA_MARKS, pytest.mark.big)
SMOKE = "1/16"  # the part of the tests that shows in minutes whether an installation works
DEVICES = ("cpu", pytest.param("cuda", marks=CUDA_MARKS))
# Of one tensor of four dimensions.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(1, 3),
    "sliced": lambda t: t[:, :, ::2],
    "expanded": lambda t: t[:1].expand(3, -1, -1, -1),
}

Test = TypeVar("Test", bound=Callable[..., None])


def needs_cuda(test: Test) -> Test:
    """Marks a test that runs on a CUDA device only."""
    for mark in CUDA_MARKS:
        test = mark(test)
    return test


def elements_spanned(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie from the first of a tensor to its last."""
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def replays_kernels() -> bool:
    """Whether single kernels are launched again with this cuDNN on this GPU."""
    cudnn, capability = _C.library_versions().get("cuDNN"), _C.capability("cuda:0")
    return any(
        (version_number(row["cudnn"]), row["capability"]) == (cudnn, capability)
        for row in _C.verified_platforms()
        if row["replays_kernels"]
    )


def made_again() -> int:
    """How many calls of cuDNN were made again without it, by their kernels or a graph of them."""
    info = _C.replay_info()
    return info["relaunched"] + info["replayed"]


def learnt() -> int:
    """How many calls of cuDNN were captured, to be made again."""
    info = _C.replay_info()
    return info["learnt"] + info["recorded"]


@pytest.fixture
def graphs() -> Iterator[None]:
    """Calls of cuDNN are repeated by graphs alone."""
    knobs.replay = "graphs"
    yield
    knobs.replay = None


@pytest.fixture(params=["kernels", "graphs"])
def each_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How calls of cuDNN are repeated: by "kernels" if possible, or by "graphs" alone."""
    if request.param == "kernels" and not replays_kernels():
        pytest.skip("single kernels of this cuDNN are not launched again on this GPU")
    knobs.replay = request.param
    yield request.param
    knobs.replay = None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says why tests were skipped: a line for each reason, the most frequent first."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if not reasons:
        return
    terminalreporter.section("skipped")
    for reason, count in reasons.most_common(REASONS):
        terminalreporter.write_line(f"{count:6} {reason}")
    others = len(reasons) - REASONS
    if others > 0:
        terminalreporter.write_line(f"       and for {others} other reasons, which -rs shows")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--shard i/n`` and ``--smoke``."""
    parser.addoption(
        "--shard",
        metavar="i/n",
        help="run the i-th of n equal parts of the collected tests (i from 1 to n)",
    )
    parser.addoption(
        "--smoke",
        action="store_const",
        const=SMOKE,
        dest="shard",
        help=f"the same as --shard {SMOKE}",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Gives each of pytest-xdist's workers its share of the cores, and checks ``--shard``.

    Without that every worker and what it starts take a thread for each core. The tests of all
    machines measure in their own process, unless they say otherwise.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        threads = max(1, (os.cpu_count() or 1) // workers)
        torch.set_num_threads(threads)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # A shell starts what runs in its background with Ctrl-C ignored, which processes inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Neither what a machine remembers changes a test, nor whether its GPU was verified before.
    os.environ[ERRATA_VARIABLE] = os.environ[STORE_VARIABLE] = ""
    knobs._STORES["store"] = knobs._DEFAULTS["store"] = ""
    knobs._environment.pop("store", None)
    local_errata.load()
    knobs._SWITCHES["isolate"] = knobs._DEFAULTS["isolate"] = "never"
    knobs.reset()
    shard = config.getoption("--shard")
    if shard is None:
        return
    index, _, count = shard.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise pytest.UsageError(f"--shard is {shard!r}, wanted i/n with 1 <= i <= n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps every n-th test of each set of marks: neighbours take as long, and marks say how.

    Slow tests are skipped unless marks are selected.
    """
    for item in items:
        if item.get_closest_marker("slow") is not None and not config.getoption("-m"):
            item.add_marker(pytest.mark.skip(reason="takes minutes, and -m slow was not given"))
    shard = config.getoption("--shard")
    if shard is None:
        return
    index, count = (int(part) for part in shard.split("/"))
    seen: Counter[frozenset[str]] = Counter()
    kept, left = [], []
    for item in items:
        marks = frozenset(mark.name for mark in item.iter_markers())
        (kept if seen[marks] % count == index - 1 else left).append(item)
        seen[marks] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@contextmanager
def refused_capture(message: str) -> Iterator[None]:
    """Captures the block into a CUDA graph, where it raises a RuntimeError of this message."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        with (
            pytest.raises(RuntimeError, match=message),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            yield


def check_compiles(
    loss: Callable[..., torch.Tensor],
    *arguments: torch.Tensor,
    inputs: Sequence[torch.Tensor] | None = None,
    backend: str = "aot_eager",
    dynamic: bool | None = None,
) -> None:
    """A loss compiles whole, with its gradients of the inputs, by default of its arguments."""
    inputs = inputs or arguments
    wanted = torch.autograd.grad(loss(*arguments), inputs)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend, dynamic=dynamic)
    torch.testing.assert_close(torch.autograd.grad(compiled(*arguments), inputs), wanted)


class Seeing(TorchDispatchMode):
    """Lists the operators that it meets, with their arguments."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self.met: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(  # noqa: D105
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        self.met.append((function, arguments))
        return function(*arguments, **(keywords or {}))


def misaligned(t: torch.Tensor) -> torch.Tensor:
    """A copy of a dense tensor, one element behind an address that is aligned."""
    storage = torch.empty(t.numel() + 1, dtype=t.dtype, device=t.device)
    return storage.as_strided(t.shape, t.stride(), 1).copy_(t)


def left_by_forward(problem: str, algorithm: str, device: str) -> dict[str, torch.Tensor]:
    """What a backward that reads its own forward's results finds of them; else nothing."""
    info = _C.problem_info(problem)
    if not info["coupled"] or info["pass_name"] == "fwd":
        return {}
    forward: str = info["coupled"][0]
    left = _C.run(forward, algorithm, _C.scratch(forward, device), EVERY_NUMERICS)
    return {role: left[role] for role in left.keys() & info["slots"].keys()}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device that the machine has: ``cpu``, and ``cuda`` where there is one."""
    return str(request.param)


@pytest.fixture
def no_tf32() -> None:
    """Float32 is what it says."""
    for switch in fp32_switches():
        switch.fp32_precision = "ieee"


@pytest.fixture(autouse=True)
def fresh_state(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fixed seeds; afterwards no knob, choice, plan or switch of PyTorch's is left behind."""
    torch.manual_seed(0)
    switches = fp32_switches()
    precisions = [switch.fp32_precision for switch in switches]
    cudnn = torch.backends.cudnn
    flags = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    deterministic = torch.are_deterministic_algorithms_enabled()
    _C.ignore_other_work(True)  # what else the machine does is not to decide whether tests pass
    yield
    knobs.reset()
    _C.table_clear()
    _C.plan_cache_clear()
    _C.reset_declined()
    for switch, precision in zip(switches, precisions, strict=True):
        if switch.fp32_precision != precision:
            switch.fp32_precision = precision
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = flags
    torch.use_deterministic_algorithms(deterministic)
    if request.node.get_closest_marker("big") is not None:
        torch.cuda.empty_cache()  # which several processes share


def newest(op: str | None = None) -> ops.Decision:
    """What the newest call of an operator ran, and why."""
    choice = ops.last_decision(op)
    assert choice is not None
    return choice


@pytest.fixture(scope="module", params=PASSES)
def measured(request: pytest.FixtureRequest) -> Profile:
    """A profile of one problem of each pass."""
    return profile(LINE.replace("conv_fwd", request.param), device="cpu")


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of networks that give trouble."""
    name = f"networks_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\n\n"
        "class Ending(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.to(next(self.parameters()).dtype)\n\n"
        "def ending():\n"
        "    return Ending(), torch.randn(2, 3)\n\n"
        "class Failing(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        raise KeyError('inside')\n\n"
        "def without_attribute():\n"
        "    return torch.nn.Nothing()\n\n"
        "def without_module():\n"
        "    import nothing_of_this_name\n\n"
        "number = 3\n\n"
        "def unmade():\n"
        "    raise KeyError('made')\n\n"
        "def failing():\n"
        "    return Failing(), torch.randn(2, 3)\n\n"
        "def foreign():\n"
        "    return torch.nn.Hardsigmoid(), torch.randn(2, 3)\n\n"
        "def conv():\n"
        "    return torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 5)\n\n"
        "def followed():\n"
        "    return torch.nn.Sequential(conv()[0], torch.nn.Hardsigmoid()), conv()[1]\n\n"
        "def unfit():\n"
        "    return torch.nn.Conv2d(3, 4, 3), torch.randn(2, 5, 5, 5)\n\n"
        "def converted():\n"
        "    import torch_cudnn_ext\n"
        "    return torch_cudnn_ext.convert(conv()[0], policy='autotune'), conv()[1]\n\n"
        "def scripted():\n"
        "    return torch.jit.script(conv()[0]), conv()[1]\n\n"
        "def double():\n"
        "    return torch.nn.Conv2d(3, 4, 3).double(), torch.randn(2, 3, 5, 5).double()\n\n"
        "def double_of_images():\n"
        "    return double()[0]\n\n"
        "def conv3d():\n"
        "    return torch.nn.Conv3d(3, 4, 3), torch.randn(2, 3, 5, 5, 5)\n\n"
        "def norm():\n"
        "    return torch.nn.BatchNorm2d(3), torch.randn(2, 3, 5, 5)\n\n"
        "def softmax():\n"
        "    return torch.nn.Softmax(1), torch.randn(2, 3)\n\n"
        "class Autocast(torch.nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        with torch.autocast('cpu', torch.bfloat16):\n"
        "            return super().forward(x)\n\n"
        "def autocast():\n"
        "    return Autocast(conv()[0]), conv()[1]\n\n"
        "class Pairs(torch.nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        assert len(x) % 2 == 0\n"
        "        return super().forward(x)\n\n"
        "def pairs():\n"
        "    return Pairs(conv()[0]), conv()[1]\n\n"
        "def of_8_and_4():\n"
        "    return torch.nn.Linear(5, 5), torch.randn(8, 4, 5)\n\n"
        "def of_4_and_8():\n"
        "    return torch.nn.Linear(5, 5), torch.randn(4, 8, 5)\n\n"
        "class Functions(torch.nn.Conv2d):\n"
        "    def forward(self, x):\n"
        "        x = torch.nn.functional.conv2d(x, self.weight)\n"
        "        return torch.softmax(torch.nn.functional.max_pool2d(x, 2), 1)\n\n"
        "def functions():\n"
        "    return Functions(3, 4, 2, bias=False), torch.randn(2, 3, 5, 5)\n\n"
        "class Branching(torch.nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x if x.sum() > 0 else -x)\n\n"
        "def branching():\n"
        "    return Branching(torch.nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 5, 5)\n\n"
        "def lazy():\n"
        "    return torch.nn.LazyConv2d(4, 3), torch.randn(2, 3, 5, 5)\n\n"
        "class Picky(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        raise ValueError(x.device.type)\n\n"
        "def picky():\n"
        "    return Picky(), torch.randn(2, 3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return name
