"""`tools/check_layers`: what it lets pass and what it reports."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

TOOL = ROOT / "tools" / "check_layers"


def _faults(root: Path) -> list[str]:
    done = subprocess.run([sys.executable, TOOL, root], capture_output=True, text=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert done.returncode == bool(lines)
    return lines


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_this_checkout_has_no_faults() -> None:
    assert _faults(ROOT) == []


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"csrc/core/a.cpp": '#include "ops/b.h"\n', "csrc/ops/b.h": ""}, "core/a.cpp (core)"),
        ({"csrc/core/a.h": '#include "core/none.h"\n'}, "which is not in csrc"),
        ({"csrc/core/a.h": "#include <torch/csrc/autograd/function.h>\n"}, "which is private"),
        ({"csrc/core/a.h": "c10::impl::ExcludeDispatchKeyGuard guard;\n"}, "which is private"),
        ({"csrc/other/a.h": ""}, "belongs to no layer"),
        (
            {"csrc/core/a.h": '#include "core/b.h"\n', "csrc/core/b.h": '#include "core/a.h"\n'},
            "a circle: csrc/core/a.h -> csrc/core/b.h -> csrc/core/a.h",
        ),
        ({"csrc/core/a.cpp": "\n" * 501}, "has 501 lines"),
        ({"csrc/core/a.cpp": "int f(int x) {\n" + "x;\n" * 80 + "}\n"}, "f has 82 lines"),
        (
            {"csrc/core/a.cpp": "struct S {\n  int g() const {\n" + "'{';\n" * 80 + "  }\n};\n"},
            "g has 82 lines",
        ),
        (
            {"torch_cudnn_ext/policy.py": "from torch_cudnn_ext.nn import x\n"},
            "torch_cudnn_ext.policy imports torch_cudnn_ext.nn, which is of a higher layer",
        ),
        ({"torch_cudnn_ext/policy.py": "from .nn import x\n"}, "wanted the absolute name"),
        ({"torch_cudnn_ext/other.py": ""}, "torch_cudnn_ext.other belongs to no layer"),
        (
            {
                "torch_cudnn_ext/tuning/a.py": "from torch_cudnn_ext.analysis import b\n",
                "torch_cudnn_ext/analysis/b.py": "from torch_cudnn_ext.tuning.a import c\n",
            },
            "a circle: torch_cudnn_ext.analysis.b -> torch_cudnn_ext.tuning.a",
        ),
        ({"torch_cudnn_ext/ops/a.py": "def f():\n" + "    x\n" * 80}, "f has 81 lines"),
    ],
)
def test_faults(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    _write(tmp_path, files)
    (line,) = _faults(tmp_path)
    assert fault in line


def test_lower_layers_and_short_functions_pass(tmp_path: Path) -> None:
    body = "  f(1'000);  // {\n" * 78
    _write(
        tmp_path,
        {
            "csrc/core/a.h": '#include "torch/internals.h"\n// c10::impl::hidden\n',
            "csrc/torch/internals.h": "#include <c10/core/impl/LocalDispatchKeySet.h>\n",
            "csrc/ops/b.cpp": '#include "core/a.h"\nvoid g() {\n' + body + "}\nvoid h() {\n}\n",
            "torch_cudnn_ext/policy.py": "from torch_cudnn_ext import _C\n",
            "torch_cudnn_ext/ops/c.py": "from torch_cudnn_ext.policy import d\n",
        },
    )
    assert _faults(tmp_path) == []
