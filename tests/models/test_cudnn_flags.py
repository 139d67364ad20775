"""Algorithms as attributes and flags of torch.backends.cudnn."""

import re
import sys
import threading
from typing import Any

import pytest
import torch
from enable_helpers import dispatch_tables, ran
from torch.nn import functional as F

from torch_cudnn_ext import _C, disable, enable, enabled, is_enabled, knobs

pytestmark = pytest.mark.usefixtures("off")


def chosen(op: str = "conv_fwd") -> str:
    """What a GPU that need not be there would run, or be told to."""
    problem = f"{op} x=f32[8,64,28,28]:nchw w=f32[64,64,3,3]:nchw pad=1"
    try:
        return _C.decide(problem, "target:h200")["algorithm"]
    except RuntimeError as error:  # the classic API answers only with a GPU at hand
        pinned = re.search("the pinned algorithm (legacy:.*) cannot run", str(error))
        assert pinned is not None, error
        return pinned[1]


def test_attributes_of_torch_backends_cudnn() -> None:
    cudnn: Any = torch.backends.cudnn
    with enabled():
        assert (cudnn.conv_fwd_algo, cudnn.conv_bwd_data_algo, cudnn.conv_bwd_filter_algo) == (
            -1,
            -1,
            -1,
        )
        cudnn.conv_fwd_algo = 1
        cudnn.conv_bwd_filter_algo = "algo_1"
        assert chosen().startswith("legacy:implicit_precomp_gemm")
        assert chosen("conv_bwd_filter").startswith("legacy:algo_1")
        cudnn.conv_fwd_algo = 0  # a seen shape
        assert chosen().startswith("legacy:implicit_gemm")
        knobs.conv_fwd_algo = "implicit_precomp_gemm"  # stronger
        assert chosen().startswith("legacy:implicit_precomp_gemm")
        knobs.conv_fwd_algo = None
        cudnn.conv_fwd_algo = -1
        cudnn.conv_bwd_filter_algo = -1
        assert not chosen().startswith("legacy:implicit_gemm")
        for wrong, kind in (
            ("nonsense", ValueError),
            ("cpu:nonsense", ValueError),
            ("time_once", ValueError),
            (99, ValueError),
            (1.5, TypeError),
            ([1], TypeError),
        ):
            with pytest.raises(kind, match="torch.backends.cudnn.conv_fwd_algo"):
                cudnn.conv_fwd_algo = wrong
        assert cudnn.conv_fwd_algo == -1
    with enabled("on_unsupported=fallback"):
        cudnn.conv_fwd_algo = "cpu:nonsense"  # which anything may replace
        cudnn.conv_fwd_algo = -1


def test_a_value_set_before_is_adopted_and_kept() -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.conv_fwd_algo = 0
    assert not chosen().startswith("legacy:implicit_gemm")
    try:
        with enabled():
            assert cudnn.conv_fwd_algo == 0
            assert chosen().startswith("legacy:implicit_gemm")
        assert cudnn.conv_fwd_algo == 0
        assert not chosen().startswith("legacy:implicit_gemm")
        cudnn.conv_fwd_algo = "nonsense"
        before = dispatch_tables()
        with pytest.raises(ValueError, match="conv_fwd_algo"):
            enable()
        assert not is_enabled()
        assert dispatch_tables() == before
    finally:
        del cudnn.conv_fwd_algo


def test_a_pin_of_flags_ends_with_them_also_where_disabled_inside() -> None:
    cudnn: Any = torch.backends.cudnn
    enable()
    with cudnn.flags(conv_fwd_algo=5):
        disable()
    assert not hasattr(cudnn, "conv_fwd_algo")
    with enabled():
        assert cudnn.conv_fwd_algo == -1
        cudnn.conv_fwd_algo = 1
        with cudnn.flags(conv_fwd_algo=5):
            disable()
            enable()
            assert cudnn.conv_fwd_algo == 5
        assert cudnn.conv_fwd_algo == 1
        cudnn.conv_fwd_algo = -1


def test_pins_of_several_threads_do_not_undo_each_other() -> None:
    cudnn: Any = torch.backends.cudnn
    names = ("conv_fwd_algo", "conv_bwd_data_algo")
    kept = dict.fromkeys(names, 0)

    def work(name: str) -> None:
        for value in (0, 1) * 300:
            setattr(cudnn, name, value)
            kept[name] += getattr(cudnn, name) == value

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with enabled():
            threads = [threading.Thread(target=work, args=(name,)) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for name in names:
                setattr(cudnn, name, -1)
    finally:
        sys.setswitchinterval(before)
    assert kept == dict.fromkeys(names, 600)


def test_flags_leave_what_they_do_not_name() -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.benchmark, cudnn.deterministic = True, True
    with enabled():
        with cudnn.flags(conv_fwd_algo=0):
            assert cudnn.conv_fwd_algo == 0
            assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == (True, True, True)
            with cudnn.flags(conv_fwd_algo=1, benchmark=False):
                assert (cudnn.conv_fwd_algo, cudnn.benchmark) == (1, False)
                assert cudnn.deterministic
            assert (cudnn.conv_fwd_algo, cudnn.benchmark) == (0, True)
        assert cudnn.conv_fwd_algo == -1
        with cudnn.flags(enabled=True):  # PyTorch's own
            assert (cudnn.benchmark, cudnn.deterministic) == (False, False)
        with (
            pytest.raises(TypeError, match="benchmrk"),
            cudnn.flags(conv_fwd_algo=0, benchmrk=True),
        ):
            pass
        with pytest.raises(ValueError, match="conv_fwd_algo"), cudnn.flags(conv_fwd_algo="x"):
            pass
        assert cudnn.conv_fwd_algo == -1


def test_a_cudnn_pin_leaves_the_cpu_alone() -> None:
    cudnn: Any = torch.backends.cudnn
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    with enabled():
        cudnn.conv_fwd_algo = 1
        F.conv2d(x, w)
        assert ran() == "aten:default"
        cudnn.conv_fwd_algo = -1


@pytest.mark.parametrize(
    ("arguments", "keywords", "kind"),
    [
        ((), {"benchmark": True, "conv_fwd_algo": "x"}, ValueError),
        ((), {"benchmark": True, "deterministic": "x", "conv_fwd_algo": 0}, Exception),
        ((False,), {"enabled": True, "conv_fwd_algo": 0}, TypeError),
        ((True,) * 9, {"conv_fwd_algo": 0}, TypeError),
    ],
)
def test_flags_that_are_refused_change_nothing(
    arguments: tuple[Any, ...], keywords: dict[str, Any], kind: type[Exception]
) -> None:
    cudnn: Any = torch.backends.cudnn
    before = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)
    with enabled():
        with pytest.raises(kind), cudnn.flags(*arguments, **keywords):
            pass
        assert (cudnn.enabled, cudnn.benchmark, cudnn.deterministic) == before
        assert cudnn.conv_fwd_algo == -1
        with cudnn.flags(False, conv_fwd_algo=0):
            assert not cudnn.enabled


def test_flags_of_a_disabled_package_pin_nothing() -> None:
    cudnn: Any = torch.backends.cudnn
    problem = "conv_fwd x=f32[8,64,28,28]:nchw w=f32[64,64,3,3]:nchw pad=1"
    with enabled():
        flags = cudnn.flags(conv_fwd_algo=1)
    with flags:
        assert cudnn.conv_fwd_algo == 1  # a plain value, which enable() would adopt
        assert _C.decide(problem, "target:h200", "")["algorithm"].startswith("graph:")
    assert not hasattr(cudnn, "conv_fwd_algo")


def test_flags_leave_pins_that_they_do_not_name() -> None:
    cudnn: Any = torch.backends.cudnn
    with enabled():
        with cudnn.flags(conv_fwd_algo=1):
            cudnn.conv_bwd_data_algo = 1
        assert (cudnn.conv_fwd_algo, cudnn.conv_bwd_data_algo) == (-1, 1)
        cudnn.conv_bwd_data_algo = -1


def test_a_deleted_attribute_is_there_again_once_set_or_enabled_anew() -> None:
    cudnn: Any = torch.backends.cudnn
    with enabled():
        del cudnn.conv_fwd_algo
        assert not hasattr(cudnn, "conv_fwd_algo")
        cudnn.conv_fwd_algo = 0
        assert cudnn.conv_fwd_algo == 0
        del cudnn.conv_fwd_algo
        with cudnn.flags(conv_fwd_algo=1):
            assert cudnn.conv_fwd_algo == 1
        del cudnn.conv_fwd_algo
    with enabled():
        assert cudnn.conv_fwd_algo == -1


def test_flags_may_be_all_that_pytorchs_switches_are_set_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cudnn: Any = torch.backends.cudnn
    forbid = torch.backends.disable_global_flags
    with enabled():
        with monkeypatch.context() as patch:
            patch.setitem(forbid.__globals__, "__allow_nonbracketed_mutation_flag", False)
            with pytest.raises(RuntimeError, match="flags"):
                cudnn.benchmark = True
            with cudnn.flags(conv_fwd_algo=1, benchmark=True):
                assert (cudnn.conv_fwd_algo, cudnn.benchmark) == (1, True)
        assert (cudnn.conv_fwd_algo, cudnn.benchmark) == (-1, False)
