"""What `enable` changes in graphs of ``torch.compile``: the calls of convolutions alone."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import newest
from enable_helpers import check_equal, passes_of, run
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

from torch_cudnn_ext import _C, convert, enable, enabled, is_enabled, when

pytestmark = pytest.mark.usefixtures("off")

OURS = "conv=cpu:im2col;on_unsupported=fallback"
POLICY = {"cpu": OURS, "cuda": "heuristic"}
BACKWARD = ["conv_bwd_data", "conv_bwd_filter"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Inductor keeps the C++ headers that it compiled, and its kernels."""
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture(autouse=True)
def fresh_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test makes its graphs anew."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    counters.clear()
    # Code without vectors compiles faster. (`vec_isa_ok` would hold for the rest of the process.)
    quick = {"fx_graph_cache": False, "cpp.simdlen": 1}
    with inductor.patch(quick), functorch.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()


class Fused(nn.Module):
    """A network whose elementwise operations and norms Inductor fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(F.gelu(self.depthwise(x)) + x, 2)
        return F.softmax(self.up(x), 1)


def _images(device: str = "cpu") -> Tensor:
    return torch.randn(2, 3, 12, 12, device=device)


def _passes(call: Callable[[], object]) -> list[str]:
    """The passes of ours that ran, PyTorch's kernels of the default device excluded."""
    return sorted(passes_of(call))


def _codes(call: Callable[[], object]) -> list[str]:
    """The code that Inductor made, without the numbers of its graphs."""
    _, codes = run_and_get_code(call)
    return [re.sub(r"AOT ID: .*", "", code) for code in codes]


def _wrapper_calls(codes: list[str]) -> list[str]:
    found = [re.findall(r"(?:extern_kernels|torch\.ops)\.[\w.]+(?=\()", code) for code in codes]
    return [name for names in found for name in names if "empty" not in name]


@pytest.mark.parametrize("training", [False, True])
def test_the_code_around_convolutions_is_pytorchs(device: str, training: bool) -> None:
    model, x = Fused().to(device).train(training), _images(device)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    results: dict[str, list[Tensor]] = {}
    codes: dict[str, list[str]] = {}
    passes: dict[str, list[str]] = {}

    def call(name: str) -> None:
        model.load_state_dict(state)
        compiled: Any = torch.compile(model, fullgraph=True)
        with nullcontext() if training else torch.no_grad():
            results[name] = run(compiled, x) if training else [compiled(x)]

    def code_of(name: str) -> None:
        codes[name] = _codes(partial(call, name))

    for name, context in (("plain", nullcontext()), ("conv", enabled(POLICY[device]))):
        with context:
            passes[name] = _passes(partial(code_of, name))
    assert codes["conv"] == codes["plain"] and len(codes["plain"]) == 1 + training
    assert "extern_kernels.convolution" in _wrapper_calls(codes["conv"])
    check_equal(results["conv"], results["plain"])
    assert passes["plain"] == []
    # The transposed convolution's passes are those of the convolution that it transposes.
    forward = ["conv_bwd_data", "conv_fwd", "conv_fwd"]
    backward = ["conv_fwd", *2 * ["conv_bwd_data"], *3 * ["conv_bwd_filter"]]
    assert passes["conv"] == sorted(forward + backward if training else forward)


def test_all_traces_our_operators_and_none_leaves_the_graph_alone() -> None:
    model, x = Fused().eval(), _images()
    with torch.no_grad():
        plain = _codes(lambda: torch.compile(model)(x))
        wanted = model(x)
        with enabled(OURS, compiled="all"):
            codes: list[str] = []
            ran = _passes(lambda: codes.extend(_codes(lambda: torch.compile(model)(x))))
        assert {"batch_norm_infer", "conv_fwd", "pool_fwd", "softmax_fwd"} <= set(ran)
        assert "torch.ops.torch_cudnn_ext.convolution.default" in _wrapper_calls(codes)
        assert "torch.ops.aten.convolution.default" not in _wrapper_calls(codes)
        with enabled(OURS, compiled="none"):
            compiled: Any = torch.compile(model)
            assert _codes(lambda: compiled(x)) == plain
            assert _passes(lambda: compiled(x)) == []
            torch.testing.assert_close(compiled(x), wanted)
            assert "conv_fwd" in _passes(lambda: model(x))  # eager code is ours


@pytest.mark.parametrize("value", ["convolution", "", None, True, ["conv"]])
def test_a_wrong_value_of_compiled(value: Any) -> None:
    with pytest.raises(
        ValueError, match="argument compiled: got .*, wanted one of conv, all, none"
    ):
        enable(compiled=value)
    assert not is_enabled()
    with (
        pytest.raises(ValueError, match=re.escape(repr(value))),
        enabled(compiled=value),
    ):
        pass


def test_policies_are_read_when_the_graph_runs() -> None:
    conv, x = nn.Conv2d(3, 4, 3), _images()
    with enabled("conv=cpu:im2col"), torch.no_grad():
        compiled: Any = torch.compile(lambda x: conv(x).relu(), fullgraph=True)
        compiled(x)
        assert (newest("conv_fwd").algorithm, newest("conv_fwd").why) == ("cpu:im2col", "pinned")
        made = counters["stats"]["unique_graphs"]
        with when("conv_fwd", use="cpu:direct"):
            compiled(x)
        assert newest("conv_fwd").algorithm == "cpu:direct"
        assert counters["stats"]["unique_graphs"] == made
    with enabled("autotune;backends=cpu"), torch.no_grad():
        compiled(x)
        assert newest("conv_fwd").why.startswith("tuned")


def test_caches_on_disk_keep_the_values_of_compiled_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    caching = {"fx_graph_cache": True, "cpp_cache_precompile_headers": False}
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)).eval(), _images()

    def hits(context: Any) -> int:
        torch._dynamo.reset()
        counters.clear()
        with context, torch.no_grad(), inductor.patch(caching):
            with functorch.patch(enable_autograd_cache=True):
                torch.compile(model)(x)
        aot = counters["aot_autograd"]["autograd_cache_hit"]
        return int(counters["inductor"]["fxgraph_cache_hit"] + aot)

    assert hits(nullcontext()) == 0
    assert hits(enabled(OURS, compiled="all")) == 0
    assert hits(enabled(OURS)) == 0
    assert hits(enabled(OURS, compiled="none")) > 0  # PyTorch's own graph
    assert hits(nullcontext()) > 0
    assert _passes(lambda: hits(enabled(OURS))) == ["conv_fwd"]
    assert hits(enabled(OURS)) > 0
    assert "softmax_fwd" in _passes(lambda: hits(enabled(OURS, compiled="all")))
    assert _passes(lambda: hits(nullcontext())) == []


class Counting(CustomGraphPass):
    """A pass of the user's."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.targets += [str(node.target) for node in graph.nodes]

    def uuid(self) -> str:
        return "counting"


def test_the_users_own_pass_runs_and_sees_pytorchs_graph() -> None:
    conv, x, own = nn.Conv2d(3, 4, 3), _images(), Counting()
    with inductor.patch(post_grad_custom_post_pass=own), enabled(OURS), torch.no_grad():
        assert _passes(lambda: torch.compile(conv)(x)) == ["conv_fwd"]
        assert inductor.post_grad_custom_post_pass is own
    assert "aten.convolution.default" in own.targets


@pytest.mark.parametrize(
    "setting", ["autocast", "dynamic", "reduce-overhead", "inference", "1d", "3d"]
)
def test_settings_of_the_compiler(device: str, setting: str) -> None:
    rank = int(setting[0]) if setting[0].isdigit() else 2
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](4, 6, 3, padding=1, groups=2)
    x = torch.randn(2, 4, *rank * [7], device=device)
    options: dict[str, Any] = {"dynamic": True} if setting == "dynamic" else {}
    if setting == "reduce-overhead":
        options = {"mode": setting}
    model = nn.Sequential(conv, nn.ReLU()).to(device)
    train = setting != "inference"
    context = torch.autocast(device, torch.bfloat16, enabled=setting == "autocast")

    def call(model: Any, x: Tensor) -> list[Tensor]:
        with context, nullcontext() if train else torch.inference_mode():
            return run(model, x) if train else [model(x)]

    plain = call(model, x)
    with enabled(POLICY[device]):
        compiled: Any = torch.compile(model, fullgraph=True, **options)
        found: list[Tensor] = []
        ran = _passes(lambda: found.extend(call(compiled, x)))
        assert ran == sorted(["conv_fwd", *BACKWARD] if train else ["conv_fwd"])
        check_equal(found, plain, 2e-2 if setting == "autocast" else 1e-4)
        check_equal(call(compiled, x), plain, 2e-2 if setting == "autocast" else 1e-4)
        if setting == "dynamic":
            more = torch.randn(3, 4, 9, 8, device=device)
            check_equal(call(compiled, more), call(model, more))
    check_equal(call(compiled, x), plain, 2e-2 if setting == "autocast" else 1e-4)
    assert _passes(lambda: call(compiled, x)) == []


def test_converted_modules_keep_their_operators_in_the_graph() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)), _images()
    model = convert(model, policy="softmax=cpu:online;conv=cpu:direct")
    for compiled in ("conv", "none"):
        with enabled("conv=cpu:im2col", compiled=compiled), torch.no_grad():  # type: ignore[arg-type]
            codes = _codes(lambda: torch.compile(model, fullgraph=True)(x))
        assert "torch.ops.torch_cudnn_ext.softmax.default" in _wrapper_calls(codes)
        assert newest("conv_fwd").algorithm == "cpu:direct"


def test_graph_breaks_run_eager_code_between_graphs() -> None:
    first, second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)

    def broken(x: Tensor) -> Tensor:
        x = first(x).relu()
        torch._dynamo.graph_break()
        return F.softmax(second(x), 1)

    with enabled(OURS), torch.no_grad():
        ran = _passes(lambda: torch.compile(broken)(_images()))
    assert ran == ["conv_fwd", "conv_fwd"]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_compiled_autograd(is_compiled: bool) -> None:
    conv, x = nn.Conv2d(3, 4, 3), _images()
    conv(x).sum().backward()
    plain = [p.grad for p in conv.parameters()]
    conv.zero_grad()
    with enabled(OURS):
        model: Any = torch.compile(conv) if is_compiled else conv

        def step() -> None:
            with compiled_autograd._enable(torch.compile):
                model(x).sum().backward()

        assert _passes(step) == ["conv_bwd_filter", "conv_fwd"]
    torch.testing.assert_close([p.grad for p in conv.parameters()], plain)


@pytest.mark.parametrize("compiled", ["conv", "none"])
def test_recurrent_networks(compiled: Any) -> None:
    x, state = torch.randn(5, 2, 4), torch.zeros(1, 2, 3)
    weights = [torch.randn(12, 4), torch.randn(12, 3), torch.randn(12), torch.randn(12)]

    def recurrent(x: Tensor) -> Tensor:
        return torch.lstm(x, (state, state), weights, True, 1, 0.0, False, False, False)[0].sin()

    def graph_of() -> list[str]:
        seen: list[str] = []

        def collect(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
            seen.extend(str(node.target) for node in graph.graph.nodes)
            return graph

        with torch.no_grad():
            torch.compile(recurrent, backend=aot_autograd(fw_compiler=collect), fullgraph=True)(x)
        return seen

    plain = graph_of()
    with enabled(compiled=compiled):
        ours = graph_of()
    if compiled == "none":
        assert ours == plain
    else:
        assert any(name.startswith("torch_cudnn_ext._rnn") for name in ours)
    torch._dynamo.reset()
    assert graph_of() == plain


LAYOUTS = {
    "contiguous": (False, False),
    "x": (True, False),
    "w": (False, True),
    "both": (True, True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["plain", "grouped", "depthwise", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_strides_are_those_that_the_compiler_expects(
    device: str, dtype: torch.dtype, kind: str, rank: int, layout: str
) -> None:
    groups = {"plain": 1, "grouped": 2, "depthwise": 4, "transposed": 1}[kind]
    transposed = kind == "transposed"
    x = torch.randn(2, 4, *rank * [6], dtype=dtype, device=device)
    w = torch.randn(4, 4 // groups, *rank * [3], dtype=dtype, device=device)
    if rank > 1:
        formats = {2: torch.channels_last, 3: torch.channels_last_3d}
        if LAYOUTS[layout][0]:
            x = x.to(memory_format=formats[rank])
        if LAYOUTS[layout][1]:
            w = w.to(memory_format=formats[rank])
    geometry = (rank * [2], rank * [1], rank * [1], transposed, rank * [int(transposed)], groups)

    def all_results() -> list[Tensor]:
        aten = torch.ops.aten
        y = aten.convolution.default(x, w, None, *geometry)
        grad = torch.ones_like(y, memory_format=torch.contiguous_format)
        mask = [True, True, True]
        return [y, *aten.convolution_backward.default(grad, x, w, [4], *geometry, mask)]

    plain = all_results()
    with enabled(POLICY[device]):
        before = _C.set_running_compiled_graph(True)
        found: list[Tensor] = []
        try:
            ran = _passes(lambda: found.extend(all_results()))
        finally:
            assert _C.set_running_compiled_graph(before)
        assert len(ran) == 3
        outside = _passes(all_results)
    assert outside == ["conv_bwd_data" if transposed else "conv_fwd"]  # as in eager code
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = (mode.from_tensor(x), mode.from_tensor(w))
        y = torch.ops.aten.convolution.default(*fakes, None, *geometry)
        grads = torch.ops.aten.convolution_backward.default(
            torch.empty_like(y), *fakes, [4], *geometry, [True, True, True]
        )
    for one, other, fake in zip(found, plain, [y, *grads], strict=True):
        assert one.shape == fake.shape
        strides = zip(one.shape, one.stride(), fake.stride(), strict=True)
        assert all(mine == wanted for size, mine, wanted in strides if size > 1)
        tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(one, other, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_a_backward_computes_what_is_asked_for(wanted: tuple[bool, bool, bool]) -> None:
    x, w, dy = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 4, 4)
    arguments = (dy, x, w, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted)
    plain = torch.ops.aten.convolution_backward.default(*arguments)
    with enabled(OURS):
        _C.set_running_compiled_graph(True)
        try:
            found = torch.ops.aten.convolution_backward.default(*arguments)
        finally:
            _C.set_running_compiled_graph(False)
    for one, other, is_wanted in zip(found, plain, wanted, strict=True):
        assert (one is not None) == is_wanted
        if is_wanted:  # PyTorch's kernel may give others too
            torch.testing.assert_close(one, other)


def test_enabling_before_inductor_is_imported() -> None:
    script = """
import sys, torch
from torch_cudnn_ext import _C, enable, disable, last_decision
early = "torch._inductor.output_code" in sys.modules
finders = len(sys.meta_path)
enable("conv=cpu:im2col")
assert ("torch._inductor.output_code" in sys.modules) == early
assert len(sys.meta_path) == finders + (not early)
conv = torch.nn.Conv2d(3, 4, 3)
compiled = torch.compile(conv)
compiled(torch.randn(1, 3, 8, 8, requires_grad=True)).sum().backward()
assert last_decision("conv_bwd_filter").algorithm == "cpu:im2col"
assert len(sys.meta_path) == finders
disable()
from torch._inductor.output_code import CompiledFxGraph
assert CompiledFxGraph.__call__.__qualname__ == "CompiledFxGraph.__call__"
assert not hasattr(CompiledFxGraph.__call__, "__wrapped__")
print("done")
"""
    environment = os.environ | {"TORCHINDUCTOR_VEC_ISA_OK": "0"}  # no trial compilations
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.stdout == "done\n", ended.stderr
