"""Process-wide settings, as attributes of this module.

    >>> from torch_cudnn_ext import knobs
    >>> knobs.conv_fwd_algo = "legacy:fft"
    >>> knobs.max_workspace = "64MiB"
    >>> with knobs.flags(deterministic=True, conv_bwd_data_algo=1):
    ...     loss = network(images).sum()
    >>> loss.backward()  # obeys the knobs that held at its forward

Knobs of the first two groups are ``None`` if they are not set:

- ``conv_fwd_algo``, ``conv_bwd_data_algo``, ``conv_bwd_filter_algo``, and so on for every operator:
  ``autotune``, ``tuned``, ``heuristic``, or an algorithm in any of the spellings of `Policy`.
- ``max_workspace``, ``prefer``, ``replay``, ``deterministic``, ``allow_tf32``,
  ``allow_down_convert``, ``allow_reduced_range``, ``benchmark``, ``fastest``, ``on_unsupported``,
  ``on_miss``, ``backends``, ``compute``: as in `Policy`. ``torch.backends`` decides what is not
  set.
- ``enabled``: ``True`` admits cuDNN's backends alone. ``False`` excludes them. ``"auto"``
  does neither; it overrides what weaker levels say of ``enabled`` and ``backends``.
- ``isolate``: where candidates are built, run and timed when something is tuned or profiled, and
  when a call tunes. ``"always"`` is a process of its own, which a bad algorithm may cost instead of
  this one; the algorithm is then not tried again. ``"never"`` is this process. ``"auto"``, the
  default, isolates on a GPU that was not verified with the loaded cuDNN.
- ``search_budget_s``: for how many seconds calls may search in all, in this process, when they
  tune what they meet. After that the heuristic's algorithm runs what is not tuned yet. The search
  that uses the last of it is finished. By default, and by ``inf``, there is no limit. On a
  terminal, calls tell what they search once that took two seconds, unless they isolate it.
- ``store``: the folder of the tuning store, which keeps what is tuned and gives it to later
  processes. By default it is ``torch_cudnn_ext/tuning`` in the user's cache folder. The empty text
  turns the store off.
- ``store_shared``: a list of further stores, which are read after the first and never written. The
  environment variable separates them by colons.
- ``store_match``: which rows of the stores serve a device. ``"same_cudnn"``, the default: those of
  the same GPU model, compute capability, number of multiprocessors and version of cuDNN; on a CPU
  of the same model and number of threads. ``"strict"``: if also PyTorch, CUDA, the driver and the
  GPU's power limit are the same. ``"same_gpu"``: with any version of cuDNN, or number of threads.
  ``"any"``: of any GPU, or CPU.
- ``verbose``: print a line for every new decision, and for every candidate that is tuned.
- ``reserve_workspace``: memory that each GPU reserves for the workspaces of cuDNN calls, so that a
  workspace does not depend on other allocations. The value is a number of bytes, or a text such as
  ``256MiB`` or ``20%`` (of the GPU's memory). 0, the default, returns the memory to PyTorch's
  allocator. A GPU's block is allocated at the first call that needs a workspace. One call uses the
  block at a time; a call on another stream uses it after the GPU has finished the call before. All
  other calls, larger workspaces, and calls under stream capture allocate their own.
  ``max_workspace`` bounds a workspace in either case.

Stronger levels are `flags` (of one thread), the policy of `enable`, rules of `when`, and an
operator's ``policy=``, a module's policy or a layer's pin. The smallest ``max_workspace`` and a
demand for determinism hold from any level. Each knob can also be set by an environment variable,
``TORCH_CUDNN_EXT_CONV_FWD_ALGO`` and so on, which is read once when the package is imported. These
variables are a level of their own, weaker than the knobs.

Setting a knob takes effect at the next call of an operator. A bad value raises ``ValueError`` or
``TypeError`` and changes nothing.
"""

import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._commands.process import is_command_line
from torch_cudnn_ext._defaults import ISOLATE, STORE_MATCHES
from torch_cudnn_ext._files import ERRATA_VARIABLE, STORE_VARIABLE
from torch_cudnn_ext._grammar import CONSTRAINTS, FALLING_BACK
from torch_cudnn_ext._policy_text import (
    check_not_once,
    check_pins,
    field_text,
    not_pinned,
    value_of,
)
from torch_cudnn_ext._warning import warn

__all__ = ["flags", "reset"]

if TYPE_CHECKING:  # `_Knobs` implements the attributes
    conv_fwd_algo: str | int | None
    conv_bwd_data_algo: str | int | None
    conv_bwd_filter_algo: str | int | None
    max_workspace: int | str | None
    prefer: str | None
    replay: str | None
    deterministic: bool | None
    allow_tf32: bool | None
    allow_down_convert: bool | None
    allow_reduced_range: bool | None
    benchmark: bool | None
    fastest: bool | None
    on_unsupported: str | None
    on_miss: str | None
    backends: str | list[str] | tuple[str, ...] | None
    compute: str | None
    enabled: str | bool
    isolate: str
    search_budget_s: float | None
    store: str | os.PathLike[str] | None
    store_shared: list[str]
    store_match: str
    verbose: bool
    reserve_workspace: int | str

    def __getattr__(name: str) -> Any:
        """The knobs of all other operators."""


_ALGORITHMS = {  # knob -> operator family
    f"{name}_algo": op["family"]
    for op in _C.operators()
    for name in (
        [op["family"]]  # one algorithm for all passes
        if op["is_always_coupled"]
        else [f"{op['family']}_{pass_name}" for pass_name in op["passes"]]
    )
}
_BUDGET = "search_budget_s"
# Those that C++ keeps, and what they are if they are not set.
_SWITCHES: dict[str, Any] = {"verbose": False, "isolate": "auto", _BUDGET: None}
_RESERVE = "reserve_workspace"
_STORES: dict[str, Any] = {"store": None, "store_shared": [], "store_match": "same_cudnn"}
_OF_PROCESS = (*_SWITCHES, *_STORES, _RESERVE)  # no flag sets these
_NAMES = (*_ALGORITHMS, *CONSTRAINTS, "enabled", *_OF_PROCESS)
_ALL_NAMES = "dir(torch_cudnn_ext.knobs)"
_DEFAULTS: dict[str, Any] = {"enabled": "auto", **_SWITCHES, **_STORES, _RESERVE: 0}
_ENABLED = {"auto": "", True: "backends=cudnn", False: "backends=aten,cpu"}
_FLAG_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_BOOLEANS = ("verbose", *(name for name, (types, _) in CONSTRAINTS.items() if bool in types))

_lock = threading.Lock()  # guards _process
_process: dict[str, Any] = {}
_deleted: set[str] = set()
_environment: dict[str, Any] = {}
_reserved: list[int] = []  # bytes of each GPU


def reset() -> None:
    """Unset every knob; the environment variables hold again.

    Example:
        >>> torch_cudnn_ext.knobs.max_workspace = "64MiB"
        >>> reset()
        >>> torch_cudnn_ext.knobs.max_workspace is None
        True
    """
    with _lock:
        _install({})
        _deleted.clear()


def flags(**values: Any) -> AbstractContextManager[None]:
    """Set knobs for this thread, inside a ``with`` block; knobs not named stay as they are.

    Blocks may be nested: the inner one wins, except that the smallest ``max_workspace`` and a
    demand for determinism hold. ``isolate``, ``verbose``, ``reserve_workspace``,
    ``search_budget_s`` and those of the store are process-wide and cannot be set here.

    A backward obeys the flags of its forward. Of flags around ``backward()`` only a smaller
    ``max_workspace`` and ``deterministic`` have an effect. What a checkpoint recomputes there obeys
    all flags around ``backward()``. Autograd's threads obey the flags of the forward and of the
    ``backward()`` in the same way. The program's own threads start without flags.

    Blocks of one thread may end in any order. Closing a block on a thread that did not open it
    raises RuntimeError, and the block stays in force on the thread that opened it.

    Raises:
        TypeError: A keyword is no knob, or its value has a type that the knob does not take.
        ValueError: A knob does not take its value.

    Example:
        >>> with flags(softmax_fwd_algo="cpu:online"):
        ...     y = torch_cudnn_ext.ops.softmax(torch.zeros(1, 4), 1)
        >>> last_decision("softmax_fwd").algorithm
        'cpu:online'
    """
    known = [name for name in _NAMES if name not in _OF_PROCESS]
    for name in values:
        if name not in known:
            wanted = _C.wanted_words(name, known, _ALL_NAMES)
            raise TypeError(f"flags: got the keyword {name!r}, {wanted}")
    action = values.get("on_unsupported") or _of_process("on_unsupported")
    falls_back = action in FALLING_BACK
    level = {name: _checked(name, value, name, falls_back) for name, value in values.items()}
    if level.get("enabled") == "auto" and level.get("backends") is None:
        level["backends"] = "cudnn,aten,cpu"  # overrides weaker levels, also those set later
    return pushed(_level_text(level))


@contextmanager
def pushed(text: str) -> Iterator[None]:
    """`flags`, with the knobs given as a policy text."""
    level = _C.push_flags(text)
    try:
        yield
    finally:
        _C.pop_flags(level)


def check_isolate(label: str, value: object) -> None:
    """Raise TypeError or ValueError if a value does not say where candidates are measured."""
    wanted = ", ".join(map(repr, ISOLATE))
    if not isinstance(value, str):
        kind = type(value).__name__
        raise TypeError(f"{label}: got {value!r} ({kind}), wanted one of {wanted}")
    if value not in ISOLATE:
        raise ValueError(f"{label}: got {value!r}, wanted one of {wanted}")


def _checked(name: str, value: object, label: str, falls_back: bool) -> object:
    """The value in the form that is kept, ``None`` for "not set".

    Args:
        name: The knob.
        value: The value that was given.
        label: What an error calls the knob.
        falls_back: Whether ``on_unsupported`` of the same level lets another algorithm run.
    """
    if value is None:
        return None
    if name in _ALGORITHMS:
        if not_pinned(value):
            return None
        check_not_once(label, value)
        family = _ALGORITHMS[name]
        text = _C.canonical_policy(_text(name, value, label), family)
        if not falls_back:
            check_pins(text, family, label)
    elif name in CONSTRAINTS:
        field_text(label, name, value)
    elif name == _RESERVE:
        _reserved_bytes(value, label)
    elif name == "isolate":
        check_isolate(label, value)
    elif name == _BUDGET:
        return _checked_seconds(value, label)
    elif name in _STORES:
        return _checked_store(name, value, label)
    elif name == "enabled":
        if not isinstance(value, bool | str):
            raise TypeError(f"{label}: got {value!r}, wanted 'auto', True or False")
        if value not in _ENABLED:
            raise ValueError(f"{label}: got {value!r}, wanted 'auto', True or False")
    elif not isinstance(value, bool):
        raise TypeError(f"{label}: got {value!r}, wanted True or False")
    return [*value] if isinstance(value, list) else value


def _checked_seconds(value: object, label: str) -> float:
    """A number of seconds; an environment variable holds it as a text."""
    wanted = "a number of seconds, at least 0; inf is no limit"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{label}: got {value!r} ({type(value).__name__}), wanted {wanted}")
    try:
        seconds = float(value)
    except ValueError:
        raise ValueError(f"{label}: got {value!r}, wanted {wanted}") from None
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"{label}: got {value!r}, wanted {wanted}")
    return seconds


def _checked_store(name: str, value: object, label: str) -> object:
    """The value of a knob of the tuning store, with absolute paths.

    Raises:
        TypeError: It has none of the types that the knob takes.
        ValueError: It is not in `STORE_MATCHES`.
    """
    if name == "store_match":
        if value not in STORE_MATCHES:
            wanted = ", ".join(map(repr, STORE_MATCHES))
            raise ValueError(f"{label}: got {value!r}, wanted one of {wanted}")
        return value
    if name == "store":
        if not isinstance(value, str | os.PathLike):
            kind = type(value).__name__
            raise TypeError(f"{label}: got {value!r} ({kind}), wanted a folder, or '' for no store")
        return os.path.abspath(value) if os.fspath(value) else ""
    if not isinstance(value, list | tuple) or not all(
        isinstance(one, str | os.PathLike) and os.fspath(one) for one in value
    ):
        raise TypeError(f"{label}: got {value!r}, wanted a list of folders")
    return [os.path.abspath(one) for one in value]


def _reserved_bytes(value: object, label: str) -> list[int]:
    """The bytes that each GPU reserves.

    Raises:
        TypeError: The value is neither an integer nor a text.
        ValueError: The value is no amount of memory, exceeds a GPU's memory, or there is no GPU.
    """
    wanted = "bytes as an integer, or a text such as '256MiB' or '20%', or 0"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{label}: got {value!r} ({type(value).__name__}), wanted {wanted}")
    try:
        cap = field_text(label, "max_workspace", value)
    except ValueError:
        raise ValueError(f"{label}: got {value!r}, wanted {wanted}") from None
    if _C.workspace_cap(cap, "cpu") == 0:
        return []
    if not torch.cuda.is_available():
        raise ValueError(f"{label}: got {value!r}, but PyTorch finds no CUDA device, wanted 0")
    reserved = []
    for index in range(torch.cuda.device_count()):
        bytes_wanted = _C.workspace_cap(cap, f"cuda:{index}") or 0
        most = _C.workspace_cap("max_workspace=100%", f"cuda:{index}") or 0
        if bytes_wanted > most:
            raise ValueError(
                f"{label}: got {value!r}, which is more than the {most} bytes of cuda:{index}"
            )
        reserved.append(bytes_wanted)
    return reserved


def _text(name: str, value: object, label: str) -> str:
    """One field of a policy text."""
    key, family = name.removesuffix("_algo"), _ALGORITHMS.get(name, "conv")
    if key == family and str(value).isdecimal():  # the same algorithm in all passes
        forward = field_text(label, f"{family}_fwd", value, family)
        value = value_of(_C.canonical_policy(forward, family), "fwd")
    return field_text(label, key, value, family)


def _level_text(values: Mapping[str, Any]) -> str:
    """The canonical policy text of one level's knobs."""
    values = {name: value for name, value in values.items() if value is not None}
    enabled = _ENABLED[values.get("enabled", "auto")]
    if enabled and "backends" in values:
        raise ValueError(
            f"enabled: got {values['enabled']!r} together with backends={values['backends']!r}, "
            "wanted one of the two"
        )
    parts = [
        _text(name, value, name)
        for name, value in values.items()
        if name in _ALGORITHMS or name in CONSTRAINTS
    ]
    return _C.canonical_policy(";".join([*parts, enabled]))


def _install(process: dict[str, Any]) -> None:
    """Make these the knobs of the process; an error changes nothing."""
    environment = _environment
    if process.get("enabled") == "auto":
        # Naming all backends instead would miss what was tuned while no backend was named.
        environment = {k: v for k, v in environment.items() if k not in ("enabled", "backends")}
    text = _C.policy_with_level(_level_text(process), _level_text(environment))
    switches = {
        name: process.get(name, environment.get(name, value)) for name, value in _SWITCHES.items()
    }
    reserved = _reserved_bytes(process.get(_RESERVE, environment.get(_RESERVE, 0)), _RESERVE)
    _C.set_knobs(text, **switches)
    if any(process.get(name) != _process.get(name) for name in _STORES):
        _C.forget_decisions()  # another store may have what was not found
    if reserved != _reserved:
        _C.set_workspace_reserve(reserved)
        _reserved[:] = reserved
    _process.clear()
    _process.update(process)


def _read_environment() -> dict[str, Any]:
    """The knobs that environment variables set; warns of a variable that names no knob.

    Raises:
        TypeError: A value has a type that the knob does not take.
        ValueError: A knob does not take its value.
    """
    values = {}
    prefix = "TORCH_CUDNN_EXT_"
    falls_back = os.environ.get(f"{prefix}ON_UNSUPPORTED", "").strip() in FALLING_BACK
    variables = {f"{prefix}{name.upper()}": name for name in _NAMES}
    for variable in sorted(os.environ):
        text = os.environ[variable].strip()
        is_other = variable in (f"{prefix}PYTHON", ERRATA_VARIABLE)  # that of tools/bootstrap
        says_nothing = not text and variable != STORE_VARIABLE  # an empty one is no store
        if is_other or says_nothing or not variable.startswith(prefix):
            continue
        if variable not in variables:
            known = [other.removeprefix(prefix) for other in variables]
            near = _C.nearest_words(variable.removeprefix(prefix), known)
            hint = f"; the nearest: {', '.join(prefix + name for name in near)}" if near else ""
            warn(
                f"environment variable {variable} sets no knob{hint}; all: {prefix} and a name of "
                f"{_ALL_NAMES} in capitals"
            )
            continue
        name = variables[variable]
        value: object = text
        if name in _BOOLEANS or name == "enabled":
            value = _FLAG_WORDS.get(text.lower(), text)
        if name == "store_shared":
            value = [path for path in text.split(os.pathsep) if path]
        if not text.isascii() and name not in _STORES:
            raise ValueError(f"environment variable {variable}: got {text!r}, wanted ASCII")
        checked = _checked(name, value, f"environment variable {variable}", falls_back)
        if checked is not None:
            values[name] = checked
    return values


def _of_process(name: str) -> Any:
    return _process.get(name, _environment.get(name, _DEFAULTS.get(name)))


def _no_knob(name: str) -> AttributeError:
    wanted = _C.wanted_words(name, [*_NAMES], _ALL_NAMES)
    return AttributeError(f"torch_cudnn_ext.knobs has no knob {name!r}, {wanted}")


class _Knobs(ModuleType):
    """The class of this module: assigning to its attributes sets knobs."""

    def __getattr__(self, name: str) -> Any:
        if name not in _NAMES:
            raise _no_knob(name)
        if name in _deleted:
            raise AttributeError(f"torch_cudnn_ext.knobs.{name} was deleted and not set since")
        value = _of_process(name)
        return [*value] if isinstance(value, list) else value

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):  # Python's own: __spec__, __file__, ...
            super().__setattr__(name, value)
            return
        if name not in _NAMES:
            raise _no_knob(name)
        falls_back = _of_process("on_unsupported") in FALLING_BACK
        checked = _checked(name, value, name, falls_back)
        with _lock:
            process = {other: kept for other, kept in _process.items() if other != name}
            _install(process if checked is None else process | {name: checked})
            _deleted.discard(name)

    def __delattr__(self, name: str) -> None:
        if name in _NAMES:
            setattr(self, name, None)
            with _lock:  # so that unittest.mock.patch restores the value that it replaced
                _deleted.add(name)
        else:
            super().__delattr__(name)

    def __dir__(self) -> list[str]:
        return sorted([*__all__, *_NAMES])

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in _process.items()]
        values += [
            f"{name}={value!r} (environment)"
            for name, value in _environment.items()
            if name not in _process
        ]
        return f"<torch_cudnn_ext.knobs: {', '.join(values) or 'nothing set'}>"


def _take_environment() -> None:
    """Set the environment's knobs; the command line reports an error as it does for arguments."""
    together = ""
    try:
        _environment.update(_read_environment())
        if _environment:
            together = "environment variables TORCH_CUDNN_EXT_*: "
            _install({})
    except (TypeError, ValueError) as error:
        message = f"{together}{error}"
        if is_command_line():
            print(f"error: {message}", file=sys.stderr)
            sys.exit(2)
        raise ValueError(message) from None


_take_environment()
sys.modules[__name__].__class__ = _Knobs
