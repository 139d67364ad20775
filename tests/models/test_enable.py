"""Unmodified models under `enable`: on and off, policies, autograd, hooks and threads."""

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Seeing
from enable_helpers import AUTOTUNE, OTHER, Net, check_equal, dispatch_tables, images, ran, run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torch_cudnn_ext
from torch_cudnn_ext import (
    _C,
    Policy,
    declined,
    disable,
    enable,
    enabled,
    is_enabled,
    knobs,
    tuning,
    when,
)
from torch_cudnn_ext import _cudnn_flags as backends
from torch_cudnn_ext.models import enable as enabling

pytestmark = pytest.mark.usefixtures("off")


def test_the_policy_is_between_rules_and_flags(net: Net, device: str) -> None:
    x, pin = images(device), OTHER[device]
    knobs.conv_fwd_algo = "aten:default"
    with enabled(f"fwd={pin}"), torch.no_grad():
        net(x)
        assert ran().startswith(pin)
        with knobs.flags(conv_fwd_algo="aten:default"):
            net(x)
            assert ran().startswith(pin)
        with when("conv_fwd", use="aten:default"):
            net(x)
            assert ran() == "aten:default"
            torch_cudnn_ext.ops.conv2d(x, net.first.weight, policy=f"fwd={pin}")
            assert ran().startswith(pin)
    net(x)
    torch_cudnn_ext.ops.conv2d(x, net.first.weight)
    assert ran() == "aten:default"  # the knob's


def test_backward_keeps_to_the_policy_of_its_forward(net: Net, device: str) -> None:
    x, pin = images(device), OTHER[device]
    enable("bwd_filter=" + ("cpu:im2col" if device == "cpu" else "legacy:algo_0"))
    y = net(x).sum()
    disable()
    y.backward()
    assert ran("conv_bwd_filter").startswith(pin if device == "cpu" else "legacy:algo_0")


def test_the_users_own_cache_tag_is_kept() -> None:
    from torch.compiler import config

    mine = "my_torch_cudnn_ext"
    before, config.cache_key_tag = config.cache_key_tag, mine
    try:
        with enabled():
            assert config.cache_key_tag not in (mine, "")
        assert config.cache_key_tag == mine
    finally:
        config.cache_key_tag = before


def test_inference_mode_and_no_grad(net: Net, device: str) -> None:
    x, pin = images(device), OTHER[device]
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            plain = net(x)
            with enabled(f"fwd={pin};bwd_data={pin if device == 'cpu' else 'aten:default'}"):
                ours = net(x)
                assert ran().startswith(pin)
                F.softmax(x, 1)
        check_equal([ours], [plain])


def test_double_backward(device: str) -> None:
    x = torch.randn(1, 2, 5, 5, dtype=torch.double, device=device, requires_grad=True)
    w = torch.randn(3, 2, 3, 3, dtype=torch.double, device=device, requires_grad=True)
    b = torch.randn(3, dtype=torch.double, device=device, requires_grad=True)

    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.softmax(F.conv2d(x, w, b, padding=1), 1)

    with enabled():
        # On a GPU the default algorithms need not repeat bit for bit.
        assert torch.autograd.gradcheck(function, (x, w, b), nondet_tol=1e-10)
        assert torch.autograd.gradgradcheck(function, (x, w, b), nondet_tol=1e-10)


def test_checkpoint_and_gradient_accumulation(net: Net, device: str) -> None:
    x, pin = images(device), OTHER[device]

    def accumulate(forward: Callable[[Tensor], Any]) -> list[Tensor]:
        net.zero_grad()
        for part in (x[:1], x[1:]):
            forward(part).square().sum().backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    plain = accumulate(net)
    for reentrant in (False, True):
        with enabled(f"fwd={pin}"):
            ours = accumulate(
                lambda part, reentrant=reentrant: checkpoint(  # type: ignore[misc]
                    net, part.requires_grad_(), use_reentrant=reentrant
                )
            )
            assert ran().startswith(pin)
        check_equal(ours, plain)


def test_distributed_data_parallel(device: str, tmp_path: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = Net().to(device)
        x, pin = images(device), OTHER[device]
        plain = run(net, x)
        wrapped = nn.parallel.DistributedDataParallel(net)
        with enabled(f"fwd={pin}"):
            check_equal(run(wrapped, x), plain)
            assert ran().startswith(pin)
    finally:
        dist.destroy_process_group()


def test_off_means_off(net: Net, device: str) -> None:
    before, x = dispatch_tables(), images(device)
    plain = run(net, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What torch._inductor warns of where it is first imported.
        warnings.filterwarnings("ignore", message="`torch.jit.script_method` is deprecated")
        enable()
    assert dispatch_tables() != before
    run(net, x)
    disable()
    assert dispatch_tables() == before
    assert all(torch.equal(a, b) for a, b in zip(run(net, x), plain, strict=True))
    assert "TorchCudnnExt" not in F.conv2d(x, net.first.weight).grad_fn.name()  # type: ignore[union-attr]
    for name in ("conv_fwd_algo", "conv_bwd_data_algo", "conv_bwd_filter_algo"):
        assert not hasattr(torch.backends.cudnn, name)
    assert "flags" not in vars(torch.backends.cudnn)


def test_twice_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="disable.*not enabled"):
        disable()
    enable()
    with pytest.raises(RuntimeError, match="enabled already"):
        enable()
    assert is_enabled()
    disable()
    with pytest.raises(RuntimeError, match="not enabled"):
        disable()


@pytest.mark.parametrize("policy", ["fwd=nonsense", "backends=rocm", "time_once"])
def test_a_bad_policy_leaves_pytorch_as_it_was(policy: str) -> None:
    before = dispatch_tables()
    with pytest.raises(ValueError):
        enable(policy)
    assert not is_enabled()
    assert dispatch_tables() == before


def test_a_pin_of_what_there_is_not_is_refused() -> None:
    for policy, wanted in (
        ("cpu:nonsense", "got 'cpu:nonsense' for conv_fwd, wanted one of .*cpu:im2col"),
        ("cpu:im2col;softmax=cpu:im2col", "for softmax_fwd.*it is an algorithm of conv"),
        ({"fwd": "cpu:nonsense"}, "got 'cpu:nonsense' for conv_fwd"),
        ("softmax=cpu:nonsense", "got 'cpu:nonsense' for softmax_fwd"),
    ):
        with pytest.raises(ValueError, match=wanted), enabled(policy):
            pass
        with pytest.raises(ValueError, match=wanted):
            tuning.tune([], device="cpu", policy=policy)
        assert not is_enabled()
    for policy in (
        "cpu:im2col;softmax=cpu:online",
        "fwd=graph:eng99/k2=1",  # only a GPU tells
        "cpu:nonsense;on_unsupported=fallback",
    ):
        with enabled(policy):
            pass


def test_enabled_ends_with_an_exception() -> None:
    with pytest.raises(KeyError), enabled():
        raise KeyError
    assert not is_enabled()


def test_measuring_and_references_are_pytorchs_own(device: str) -> None:
    problem = "conv_fwd x=f32[1,2,5,5]:nchw w=f32[3,2,3,3]:nchw"
    with enabled("fwd=" + OTHER[device]):
        tensors = _C.scratch(problem, device)
        reference = _C.reference(problem, tensors)["y"]
        result = _C.run(problem, "aten:default", tensors)["y"]
        assert _C.relative_error(result, reference) < 1e-5
        rows = _C.measure(problem, device, algorithms=["aten:default"], min_samples=1)
    assert rows[0]["status"] == "ok"


def test_functorch(device: str) -> None:
    x, w = torch.randn(4, 1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return F.conv2d(x, w).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))
    plain = per_sample(w, x)
    with enabled():
        check_equal([per_sample(w, x)], [plain])
    assert declined()["convolution: a transform of torch.func"] > 0


def test_threads(net: Net, device: str) -> None:
    x = images(device)
    plain = run(copy.deepcopy(net), x)
    results: list[list[Tensor]] = []
    with enabled(AUTOTUNE[device]):
        copies = [copy.deepcopy(net) for _ in range(4)]

        def work(model: Net) -> None:
            for _ in range(3):
                result = run(model, x)
            results.append(result)

        threads = [threading.Thread(target=work, args=(model,)) for model in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 4
    for result in results:
        check_equal(result, plain)


@pytest.mark.parametrize("at", ["before", "within", "behind"])
def test_ctrl_c_leaves_nothing_enabled(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn: Any = torch.backends.cudnn
    before, tag = dispatch_tables(), torch.compiler.config.cache_key_tag

    class Interrupting(backends._Pin):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            if name == "conv_bwd_data_algo":
                raise KeyboardInterrupt

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    cudnn.conv_fwd_algo = 0
    try:
        with monkeypatch.context() as patch:
            if at == "before":
                patch.setattr(backends, "install", interrupt)
            elif at == "within":
                patch.setattr(backends, "_Pin", Interrupting)
            else:
                patch.setattr(enabling, "_forget_compiled", interrupt)
            with pytest.raises(KeyboardInterrupt):
                enable("fwd=cpu:direct")
            # What undoes it is interrupted too, behind all that it calls.
            assert is_enabled() == (at == "behind")
        if is_enabled():
            disable()
        assert not is_enabled() and dispatch_tables() == before
        assert "flags" not in vars(cudnn) and vars(cudnn)["conv_fwd_algo"] == 0
        assert _C.enabled_policy() == "" and torch.compiler.config.cache_key_tag == tag
        with enabled():
            assert cudnn.conv_fwd_algo == 0
    finally:
        vars(cudnn).pop("conv_fwd_algo", None)


def test_autotune_for_all_operators(device: str) -> None:
    with enabled(Policy("autotune")):
        assert Policy.parse(_C.resolved_policy(None, "softmax"), "softmax").get("fwd") is None
    with enabled("autotune"):
        for family, name in (("conv", "bwd_data"), ("softmax", "fwd")):
            policy = Policy.parse(_C.resolved_policy(None, family), family)
            assert policy.get(name) == "autotune"


def test_an_end_inside_its_block_is_no_error() -> None:
    with enabled():
        disable()
    with pytest.raises(KeyError), enabled():
        disable()
        raise KeyError
    assert not is_enabled()
    with when("conv_fwd", use="aten:default") as rule:
        rule.remove()
    with pytest.raises(KeyError), when("conv_fwd", use="aten:default") as rule:
        rule.remove()
        raise KeyError
    with pytest.raises(ValueError):
        rule.remove()


@pytest.mark.parametrize("kind", ["hook", "mode"])
def test_a_value_error_of_the_users_is_the_users(kind: str, device: str) -> None:
    x = torch.randn(8, 3, 6, device=device, requires_grad=True)
    mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
    failed = []

    def fail(*_: Any) -> Any:
        failed.append(kind)
        raise ValueError("mine")

    class Failing(TorchDispatchMode):
        def __torch_dispatch__(self, *_: Any, **__: Any) -> Any:
            fail()

    hook = torch.autograd.graph.saved_tensors_hooks(fail, lambda t: t)
    with (
        enabled(),
        pytest.raises(ValueError, match="^mine$"),
        hook if kind == "hook" else Failing(),
    ):
        F.batch_norm(x, mean, var, training=True)
    # PyTorch's own kernel does not try again what the user stopped.
    assert failed == [kind] and not mean.any()


def test_checkpoints_run_no_convolution_again_that_saves_inputs_alone(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)).to(device)
    with enabled():
        y = checkpoint(model, images(device).requires_grad_(), use_reentrant=False)
        with Seeing() as seen:
            y.sum().backward()
    names = [str(function) for function, _ in seen.met]
    assert names.count("torch_cudnn_ext.convolution.default") == 1
    assert names.count("torch_cudnn_ext.convolution_backward_weight.default") == 2


def test_a_hook_that_raises_leaves_running_statistics_alone(device: str) -> None:
    def full(t: Tensor) -> Tensor:
        raise MemoryError

    norm = nn.BatchNorm2d(3).to(device)
    with (
        enabled(),
        pytest.raises(MemoryError),
        torch.autograd.graph.saved_tensors_hooks(full, lambda t: t),
    ):
        norm(images(device).requires_grad_())
    assert norm.running_mean is not None and not norm.running_mean.any()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_tuning_is_nothing_that_hooks_on_saved_tensors_see(kind: Any, device: str) -> None:
    tuning.reset()
    layer = kind(8, 4).to(device)
    x = torch.randn(5, 2, 8, device=device, requires_grad=True)
    (wanted,) = torch.autograd.grad(layer(x)[0].sum(), x)
    with enabled("autotune"):
        for _ in range(2):
            y = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
            (dx,) = torch.autograd.grad(y.sum(), x)
            torch.testing.assert_close(dx, wanted, rtol=0, atol=2e-3)  # may be TF32
    packed: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        packed.append(t)
        return t

    for _ in range(2):
        tuning.reset()
        with (
            enabled("autotune"),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        ):
            layer(x)[0].sum().backward()
    assert len(packed) < 60 and {t.dtype for t in packed} <= {torch.float32, torch.uint8}


def test_what_is_enabled_anew_goes_before_and_ends_with_its_block() -> None:
    with enabled("fwd=cpu:direct;softmax=cpu:online;compute=f64"):
        before = _C.enabled_policy()
        with pytest.raises(KeyError), enabling.enabled_anew("heuristic"):
            for family in ("conv", "softmax"):
                text = _C.resolved_policy("", family)
                assert Policy.parse(text, family).get("fwd") == "heuristic"
                assert "compute=f64" in text
            raise KeyError
        assert _C.enabled_policy() == before and is_enabled()


class Wrapped(Tensor):
    """A tensor subclass that knows PyTorch's operators alone."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        make = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        made = make(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(  # noqa: D105
        cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        if function.namespace == "torch_cudnn_ext":
            raise NotImplementedError(f"{function} is not known")
        opened = tree_map_only(Wrapped, lambda t: t.inner, (arguments, keywords or {}))
        return tree_map_only(Tensor, Wrapped, function(*opened[0], **opened[1]))


@pytest.mark.parametrize("whose", ["input", "weight"])
def test_a_dispatch_mode_hands_our_operators_to_no_subclass(whose: str, device: str) -> None:
    x, w = images(device), torch.randn(4, 3, 3, 3, device=device)
    wanted = F.conv2d(x, w)
    given = {"input": x, "weight": w}
    given[whose] = Wrapped(given[whose])
    with enabled():
        for mode in (Seeing(), FlopCounterMode(display=False)):
            with mode:
                y = F.conv2d(**given)
            assert isinstance(y, Wrapped)
            torch.testing.assert_close(y.inner, wanted)
        with Seeing() as mode:
            F.conv2d(x, w)
        assert any(function.namespace == "torch_cudnn_ext" for function, _ in mode.met)
