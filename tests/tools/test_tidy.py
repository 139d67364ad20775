"""`tools/tidy`: which files it takes, and how it calls clang-tidy."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

SOURCES = ("core/a.cpp", "core/b.cpp", "core/c.cpp")
FLAGS = "-std=c++17 -DNDEBUG"


def _git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def _commit(root: Path, *changed: str) -> None:
    for name in changed:
        path = root / "csrc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + "// changed\n")
    _git(root, "add", "csrc")
    _git(root, "commit", "--message", f"{changed}")


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone whose bootstrap, ninja and clang-tidy are scripts.

    b.cpp includes x.h by way of y.h, and a.cpp and c.cpp include c.h. A file that holds ``wrong``
    has a finding.
    """
    root = tmp_path / "checkout"
    (root / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "tidy", root / "tools")
    python = root / "build" / "bin" / "python"
    _script(root / "tools" / "bootstrap", f"echo {python}")
    build = root / "build" / "torch2_15-cpython"
    build.mkdir(parents=True)
    (build / "build.ninja").touch()
    folders = f"-I{root}/csrc -I/torch/include"
    command = f"g++ -g -O2 {FLAGS} {folders} -include precompiled.h -c a.cpp"
    (root / "build" / "compdb").write_text(json.dumps([{"command": command}]))
    _script(python, f'[ "$*" = "-m ninja -C {build} -t compdb" ] && cat build/compdb')
    clang_tidy = 'echo "$@" >>build/calls; echo found; ! grep -q wrong "$2"'
    _script(python.with_name("clang-tidy"), clang_tidy)
    includes = {"a.cpp": "c.h", "b.cpp": "y.h", "c.cpp": "c.h", "y.h": "x.h"}
    (root / "csrc" / "core").mkdir(parents=True)
    for name, header in includes.items():
        (root / "csrc" / "core" / name).write_text(f'#include "core/{header}"\n')
    _git(root, "init", "--initial-branch", "main")
    _commit(root, *SOURCES, *(f"core/{name}.h" for name in ("c", "unused", "x", "y")))
    return root


def _tidied(checkout: Path, *files: str, code: int = 0) -> tuple[list[str], str]:
    """The sources that clang-tidy was called for, and what was printed."""
    calls = checkout / "build" / "calls"
    calls.unlink(missing_ok=True)
    tool = checkout / "tools" / "tidy"
    done = subprocess.run([tool, *files], cwd=checkout / "csrc", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    lines = calls.read_text().splitlines() if calls.exists() else []
    assert all(line.startswith("--quiet csrc/") for line in lines)
    wanted = f" -- -Wall -I{checkout}/csrc {FLAGS} -isystem/torch/include"
    assert all(line.endswith(wanted) for line in lines)
    return sorted(line.split()[1].removeprefix("csrc/") for line in lines), done.stdout


def test_the_last_commit_and_what_is_not_committed(checkout: Path) -> None:
    _commit(checkout, "core/a.cpp")
    _commit(checkout, "core/b.cpp")
    assert _tidied(checkout)[0] == ["core/b.cpp"]
    (checkout / "csrc" / "core" / "new.cpp").touch()
    (checkout / "csrc" / "core" / "c.cpp").write_text("\n")
    (checkout / "csrc" / "core" / "b.cpp").unlink()
    assert _tidied(checkout)[0] == ["core/c.cpp", "core/new.cpp"]


@pytest.mark.parametrize("name", ["HEAD", "main"])
def test_a_branch_is_compared_with_the_default_branch(checkout: Path, name: str) -> None:
    _git(checkout, "update-ref", f"refs/remotes/origin/{name}", "HEAD")
    _commit(checkout, "core/a.cpp")
    _commit(checkout, "core/c.cpp")
    assert _tidied(checkout)[0] == ["core/a.cpp", "core/c.cpp"]
    _git(checkout, "update-ref", f"refs/remotes/origin/{name}", "HEAD")
    assert _tidied(checkout)[0] == ["core/c.cpp"]


def test_a_header_is_read_within_a_source(checkout: Path) -> None:
    _commit(checkout, "core/x.h")
    assert _tidied(checkout)[0] == ["core/b.cpp"]
    _commit(checkout, "core/c.h")
    assert _tidied(checkout)[0] == ["core/c.cpp"]  # rather than a.cpp, by its name
    _commit(checkout, "core/c.h", "core/a.cpp")
    assert _tidied(checkout)[0] == ["core/a.cpp"]
    _commit(checkout, "core/unused.h")
    sources, text = _tidied(checkout)
    assert sources == [] and "no source includes csrc/core/unused.h" in text


def test_at_most_twenty_files_are_read(checkout: Path) -> None:
    _commit(checkout, *(f"core/n{i:02}.cpp" for i in range(22)))
    sources, text = _tidied(checkout)
    assert sources == [f"core/n{i:02}.cpp" for i in range(20)]
    assert "2 more are not read" in text and "csrc/core/n20.cpp csrc/core/n21.cpp" in text
    files = [f"core/n{i:02}.cpp" for i in range(22)]
    assert len(_tidied(checkout, *files)[0]) == 22


def test_findings_fail(checkout: Path) -> None:
    (checkout / "csrc" / "core" / "a.cpp").write_text("wrong\n")
    sources, text = _tidied(checkout, "core/a.cpp", "core/b.cpp", code=1)
    assert sources == ["core/a.cpp", "core/b.cpp"]
    assert text.count("found") == 1 and "2 sources, 1 with findings" in text


def test_without_what_it_needs(checkout: Path, tmp_path: Path) -> None:
    assert "core/none.cpp, wanted a file of" in _tidied(checkout, "core/none.cpp", code=2)[1]
    (tmp_path / "other.cpp").touch()
    assert "other.cpp, wanted a file of" in _tidied(checkout, f"{tmp_path}/other.cpp", code=2)[1]
    assert "only changes that are not committed count" in _tidied(checkout)[1]
    shutil.rmtree(checkout / ".git")
    assert "no git checkout" in _tidied(checkout)[1]
    shutil.rmtree(checkout / "build" / "torch2_15-cpython")
    assert "build.ninja is missing" in _tidied(checkout, "core/a.cpp", code=2)[1]
