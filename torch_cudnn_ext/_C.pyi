"""The compiled half: everything here speaks in texts, numbers, tensors and plain dicts.

Devices are written ``cpu``, ``cuda``, ``cuda:1`` or ``target:h200`` (a GPU that is not there).
"""

from collections.abc import Callable
from typing import Any, TypedDict

from torch import Tensor

class Candidate(TypedDict):
    """One algorithm on one problem, built (or refused) but not timed."""

    algorithm: str
    backend: str
    status: str  # "ok", "unsupported", "excluded" (by a constraint) or "needs a driver"
    reason: str  # empty when ok
    workspace_bytes: int | None  # None: unknown before a run (aten)
    notes: list[str]  # "tensor_core", "tf32", "down_convert", "winograd", "nondeterministic", ...
    deterministic: bool | None
    source: str  # where it came from: "heuristic A #3", "default knobs", "enumeration"

class Measurement(TypedDict):
    """One algorithm on one problem, timed."""

    algorithm: str
    backend: str
    status: str  # "ok", "unsupported", "excluded", "needs a driver", "failed" or "rejected"
    reason: str
    median_ms: float | None
    spread_ms: float | None  # half of the interquartile range
    host_ms: float | None  # the host's for a call, median; None where the host does the work itself
    samples: int
    workspace_bytes: int | None
    notes: list[str]
    deterministic: bool | None
    error: float | None  # relative error against the float64 reference
    source: str
    build_ms: float

class Decision(TypedDict):
    """What a call would run, or ran, and why."""

    op: str  # "conv_fwd", "conv_bwd_data", "conv_bwd_filter"
    problem: str
    algorithm: str
    # "pinned", "pinned by ...", "tuned", "cached", "heuristic", "heuristic: <reason>",
    # "coupled with its forward" or "fallback: <reason>"
    why: str
    workspace_bytes: int | None
    decision_ms: float
    device: str
    policy: str

class ProblemInfo(TypedDict):
    text: str  # canonical
    family: str  # "conv"
    pass_name: str  # "fwd"
    op: str  # "conv_fwd"
    dtype: str  # "f16"
    flops: float
    bytes: float  # every input read once, every output written once
    slots: dict[str, dict[str, Any]]  # role -> "dtype", "sizes", "strides", "output", "mutated"
    coupled: list[str]  # problems that share its algorithm; of a backward, its forward

class TableEntry(TypedDict):
    problem: str
    device: str
    constraints: str
    measurements: list[Measurement]

# Texts. Each raises ValueError that names the part that is wrong.
def canonical_problem(text: str) -> str: ...
def problem_info(text: str) -> ProblemInfo: ...
def rnn_parameter_sizes(text: str) -> list[tuple[int, ...]]: ...
def canonical_algorithm(text: str, op: str | None = None) -> str:
    """With ``op`` ("conv_fwd") integers, enum and Theano names are accepted and resolved."""

def canonical_policy(text: str, family: str = "conv", written_for: str | None = None) -> str:
    """Passes of the family `written_for` (default: `family`) are written without its name."""

def policy_fields(text: str, family: str = "conv") -> dict[str, Any]:
    """Keys: pass names -> text, and each constraint that is set."""

def merged_policy(stronger: str, weaker: str, family: str = "conv") -> str:
    """Field by field the stronger wins, but the strictest cap and determinism hold.

    ``fastest`` ignores the cap of its own text only; beside a cap it is spelled out.
    """

def policy_with_level(stronger: str, weaker: str, family: str = "conv") -> str:
    """As `merged_policy`, of two levels: a stronger ``fastest`` leaves no choice of the weaker.

    ``fastest=false`` takes back that of the weaker, with its ``benchmark``.
    """

def workspace_cap(text: str, device: str) -> int | None:
    """The cap of a policy of convolutions in bytes; a share is one of the device's memory."""

def convolution_problem(
    op: str,
    x: Tensor,
    w: Tensor,
    padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    policy: str | None = None,
    has_bias: bool = False,
) -> str:
    """The problem line that a call on these tensors would have; a bias is the forward's alone."""

def operators() -> list[dict[str, Any]]:
    """Each family: {"family": "conv", "passes": [...], "backends": [name, ...],
    "legacy_names": {pass: [(integer, enum name, short name)]}, "is_always_coupled": bool}.

    For the table of operators "entry_points", "dtypes", "layouts", "limits" and "examples"
    (problem lines of common forwards); "batch_sizes" says which size of which tensor is the batch.
    """

# Texts that are parsed have at most so many bytes.
MAX_TEXT: int
# Where the full lists of words are.
IN_POLICIES: str
IN_TEXTS: str
IN_OPERATORS: str

def check_length(what: str, text: str) -> None:
    """ValueError for more than MAX_TEXT bytes."""

def nearest_words(word: str, known: list[str]) -> list[str]:
    """The known words with the fewest letters to change, at most five; ``*`` is any text."""

def wanted_words(word: str, known: list[str], all: str) -> str:
    """ "wanted one of ..."; of many words the nearest, and where ``all`` of them are."""

def families_with(algorithm: str) -> list[str]:
    """Those whose common problems have it; of engines of the graph API none."""

# Devices.

def add_target(name: str, device_properties_json: str) -> None: ...
def device_fingerprint(device: str) -> str: ...
def versions() -> dict[str, str]:
    """ "torch", "cudnn" (run time), "cudnn_header", "cudart"."""

def cudnn_files() -> list[str]:
    """Paths of all mapped libcudnn files, in order of mapping."""

# Choosing.
OUT_OF_MEMORY: str  # in the reason of what found none
OUT_OF_TIME: str  # begins the reason of what was not tried

def set_measurement_lock(path: str) -> None:
    """Processes with one such file build side by side and otherwise measure one at a time."""

def candidates(
    problem: str, device: str, policy: str = "", remember: bool = False
) -> list[Candidate]: ...
def measure(
    problem: str,
    device: str,
    policy: str = "",
    algorithms: list[str] | None = None,
    time_budget_s: float = 0.0,
    knob_search: bool = False,
    record: bool = True,
    min_samples: int = 11,
    flush_l2: bool = True,
    progress: Callable[[int, int, str], None] | None = None,
    levels: bool = True,
) -> list[Measurement]:
    """Times candidates on scratch memory; ranked best first, then the others with reasons.

    ``time_budget_s`` 0 means no limit; ``record`` stores the ranking in the choice table. Without
    ``levels`` the policy alone holds, with PyTorch's switches: no knobs, flags or `enable`.
    ``progress(done, total, algorithm)`` may raise (KeyboardInterrupt): then nothing is stored.
    """

def decide(problem: str, device: str, policy: str = "") -> Decision:
    """What an operator would run now (tunes when the policy says so)."""

def run(
    problem: str,
    algorithm: str,
    tensors: dict[str, Tensor],
    policy: str = "",
    replay: str = "never",
) -> dict[str, Tensor]:
    """Run one algorithm on given tensors by role ("x", "w", "y"); outputs may be absent.

    Returns the tensors that it computed or changed. ``replay`` is "never", "graphs" or "kernels" as
    in an operator's call; or, if the plan ran before, "graphs_at_once" or "kernels_at_once".
    """

def execute_loop(
    problem: str, algorithm: str, tensors: dict[str, Tensor], iterations: int
) -> float:
    """Host seconds a call of a loop of bare plan executions on tensors that are all given."""

def scratch(problem: str, device: str, seed: int = 0) -> dict[str, Tensor]:
    """Random inputs for a problem, by role."""

def reference(problem: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The float64 results by role, on the tensors' device."""

def relative_error(result: Tensor, reference: Tensor) -> float:
    """The error that a candidate is judged by; NaN when not finite."""

def tolerance(problem: str, notes: list[str]) -> float:
    """The relative error above which a candidate is rejected."""

def last_decision(op: str | None = None) -> Decision | None: ...
def problems_posed_by(call: Callable[[], object]) -> list[str]:
    """The problem lines that operators pose on this thread while ``call`` runs, in order.

    They compute nothing: their results have sizes and strides, and no values.
    """

# State.
def set_workspace_reserve(bytes_by_device: list[int]) -> None:
    """How many bytes each CUDA device keeps for workspaces, by its index; 0: none."""

def workspace_reserve_info() -> dict[str, int]:
    """``held_bytes`` of the current device, and workspaces ``served`` in all."""

def set_knobs(policy_text: str, verbose: bool) -> None:
    """Process-wide knobs, as one policy text; raises before anything is changed."""

def replay_obstacle(policy: str, device: str) -> str:
    """Why calls cannot be repeated as the policy's ``replay`` asks; empty if they can."""

def replay_info() -> dict[str, int]:
    """How often calls of cuDNN were made again without it.

    Calls that were ``recorded`` as graphs, calls that were ``replayed`` by them, and the
    ``kernels`` that those graphs hold now; kinds of calls whose kernels were ``learnt``, and calls
    that were ``relaunched``: those kernels, one by one.
    """

def push_flags(policy_text: str) -> int: ...  # this thread
def pop_flags(id: int) -> None: ...
def enabled_policy(family: str = "conv") -> str: ...
def set_enabled_policy(policy_text: str) -> None:
    """What enable() says: stronger than flags and knobs."""

def set_cudnn_pins(policy_text: str) -> None:
    """What torch.backends.cudnn.conv_fwd_algo and its like say: the weakest level."""

def add_rule(matcher: str, use: str) -> int: ...
def check_rule(matcher: str, use: str) -> str:
    """The policy, with names of operators; ValueError where `add_rule` would raise it."""

def remove_rule(id: int) -> None: ...
def enable_overrides() -> None:
    """Put the overrides of PyTorch's operators into its dispatcher; RuntimeError when they are."""

def disable_overrides() -> None: ...
def overrides_enabled() -> bool: ...
def overridden_ops() -> list[str]:
    """Of namespace aten, with their overloads: "convolution", "lstm.input"."""

def declined() -> dict[str, int]:
    """Calls that went to PyTorch's own kernel, by "operator: reason"."""

def reset_declined() -> None: ...
def set_recording(on: bool) -> None:
    """Begin a recording of what this thread runs, and autograd's threads for it, or end the last.

    The last begun takes over meanwhile.
    """

def set_model_tracing(on: bool) -> None:
    """While on, what this thread runs, and autograd's threads for it, tunes nothing."""

def is_model_tracing() -> bool: ...
def recorded(begin: int = 0) -> list[Decision | str]:
    """What ran since recording began; a text says why PyTorch's own kernel ran."""

def resolved_policy(policy: str | None, family: str = "conv") -> str:
    """All levels merged but rules: argument, enable, flags, knobs, PyTorch's switches."""

def policy_for(problem: str, policy: str) -> str:
    """The same, and the rules of this problem."""

def tuned(
    problem: str, device: str, policy: str = "", time_budget_s: float = 0
) -> list[Measurement] | None:
    """The ranking that the table has of a problem under the policy's constraints.

    None where nothing ran, or autotune left algorithms out: to measure all is what tuning is for.
    None as well where a time budget did that which was smaller than ``time_budget_s`` (0: no
    limit).
    """

def constraints_text(problem: str, policy: str) -> str:
    """What of a policy an entry of the table of choices is under, as the table spells it."""

def table_export() -> list[TableEntry]: ...
def check_measurement(row: dict[str, Any]) -> None:
    """Raise a ValueError where a field of it is none."""

def table_import(entries: list[TableEntry]) -> int: ...
def table_clear() -> None: ...
def plan_cache_info() -> dict[str, int]:
    """This thread's plan cache: "size", "capacity", "hits", "misses"."""

def plan_cache_clear() -> None: ...
