"""The compiled half. Its functions take and return texts, numbers, tensors and plain dicts.

Devices are written ``cpu``, ``cuda``, ``cuda:1`` or ``target:h200`` (a GPU that need not be there).
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypedDict

from torch import Tensor

class Candidate(TypedDict):
    """One algorithm on one problem, with the status of its build; not timed."""

    algorithm: str
    backend: str
    status: str  # "ok", "unsupported", "excluded" (by a constraint) or "needs a driver"
    reason: str  # empty when ok
    workspace_bytes: int | None  # None: unknown before a run (aten)
    notes: list[str]  # "tensor_core", "tf32", "down_convert", "winograd", "nondeterministic", ...
    deterministic: bool | None
    source: str  # how it was found: "heuristic A #3", "default knobs", "enumeration"

class Measurement(TypedDict):
    """One algorithm on one problem, timed."""

    algorithm: str
    backend: str
    # "ok", "unsupported", "excluded", "needs a driver", "failed", "rejected" or "unstable"
    status: str
    reason: str
    median_ms: float | None
    spread_ms: float | None  # half of the interquartile range
    host_ms: float | None  # median host time of a call; None if the host does the work itself
    samples: int
    workspace_bytes: int | None
    notes: list[str]
    deterministic: bool | None
    error: float | None  # relative error against the float64 reference
    source: str
    build_ms: float
    # Of the GPU's multiprocessors, over all readings; None if the driver tells none.
    clock_low_mhz: int | None
    clock_high_mhz: int | None
    throttled: list[str]  # why the driver held the clocks down
    energy_mj: float | None  # of a call; None if it was not measured
    energy_spread_mj: float | None  # half of the interquartile range

class DeviceState(TypedDict):
    """What the driver tells of a GPU now; None for what it does not tell."""

    sm_clock_mhz: int | None
    throttled: list[str]
    power_limit_w: float | None
    energy_mj: float | None  # since some point in the past

class Decision(TypedDict):
    """What a call would run, or ran, and why."""

    op: str  # "conv_fwd", "conv_bwd_data", "conv_bwd_filter"
    problem: str
    algorithm: str
    # "pinned", "pinned by ...", "tuned", "cached", "cached: measured on <another device>",
    # "cached: ranked under <other constraints>", "nearest: as tuned for <another problem>",
    # "heuristic", "heuristic: <reason>",
    # "coupled with its forward" or "fallback: <reason>"
    why: str
    workspace_bytes: int | None
    decision_ms: float
    device: str
    policy: str

class ExecutedDecision(Decision):
    calls: int

class MeasureCounts(TypedDict):
    problems: int
    timed_runs: int  # of the problems' algorithms
    searches: int  # inside calls
    search_seconds: float

class ProblemInfo(TypedDict):
    text: str  # canonical
    family: str  # "conv"
    pass_name: str  # "fwd"
    op: str  # "conv_fwd"
    dtype: str  # "f16"
    flops: float
    bytes: float  # every input read once, every output written once
    slots: dict[str, dict[str, Any]]  # role -> "dtype", "sizes", "strides", "output", "mutated"
    coupled: list[str]  # problems that share its algorithm; for a backward this is its forward

class ErratumRun(TypedDict):
    """A run that shows an erratum if its guard is lifted."""

    problem: str
    algorithm: str
    inputs: str  # "" (random numbers), "-inf", "inf", "nan", "one inf", or "grid=nan" of a role

class Erratum(TypedDict):
    """A known defect of a library, and whether its guard is on for a version and a GPU."""

    id: str
    library: str  # "cuDNN" or "PyTorch"
    place: str  # "GPU", "CPU" or "GPU and CPU"
    backends: list[str]
    families: list[str]
    passes: list[str]  # empty: all
    algorithms: list[str]  # their names; empty: all
    with_notes: list[str]  # only algorithms that have these notes
    without_notes: list[str]
    architectures: list[int]  # compute capabilities; empty: all
    first: str  # the version that it was first seen in: "9.19"
    last_good: str  # the newest older version that was shown to be without it; empty: none
    fixed: str  # the version that was shown to be without it again; empty: none
    remedy: str  # "unsupported", "worked around", "tried last", or the note that plans have
    is_note: bool
    text: str  # what happens
    evidence: str  # begins with what was seen, such as "wrong values" or "hangs"
    runs: list[ErratumRun]  # one of them suffices; empty: no single run shows it
    state: str  # "on", "fixed", "not in this version" or "not on this GPU"

class EngineHint(TypedDict):
    """Engines that the untuned order tries first, and whether it does so for a version and GPU."""

    id: str
    family: str
    algorithms: list[str]
    measured: list[tuple[str, int]]  # versions of cuDNN with compute capabilities
    text: str
    on: bool

class VerifiedPlatform(TypedDict):
    """A version of cuDNN and a compute capability on which the test suite ran."""

    cudnn: str
    capability: int
    replays_kernels: bool
    gpus: str

class TableEntry(TypedDict):
    problem: str
    device: str
    constraints: str
    measurements: list[Measurement]

# Texts. Each raises a ValueError that names the part that is wrong.
def canonical_problem(text: str) -> str: ...
def problem_info(text: str) -> ProblemInfo: ...
def rnn_parameter_sizes(text: str) -> list[tuple[int, ...]]: ...
def canonical_algorithm(text: str, op: str | None = None) -> str:
    """With ``op`` ("conv_fwd"), integers, enum names and Theano names are resolved as well."""

def canonical_policy(text: str, family: str = "conv", written_for: str | None = None) -> str:
    """Passes of the family `written_for` (default: `family`) are written without its name."""

def policy_fields(text: str, family: str = "conv") -> dict[str, Any]:
    """Keys: pass names -> text, and each constraint that is set."""

def merged_policy(stronger: str, weaker: str, family: str = "conv") -> str:
    """Field by field the stronger wins, but the strictest cap and determinism hold.

    ``fastest`` ignores only the cap of its own text. A result with a cap does not contain
    ``fastest``, but the other fields that it implies.
    """

def policy_with_level(stronger: str, weaker: str, family: str = "conv") -> str:
    """As `merged_policy`, of two levels: a stronger ``fastest`` drops the weaker's selections.

    A stronger ``fastest=false`` undoes a weaker ``fastest``, with its ``benchmark``.
    """

def workspace_cap(text: str, device: str) -> int | None:
    """The cap of a policy of convolutions in bytes; a share is of the device's memory."""

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
    """The problem line that a call on these tensors would have; only a forward has a bias."""

def operators() -> list[dict[str, Any]]:
    """Each family: {"family": "conv", "passes": [...], "backends": [name, ...],
    "legacy_names": {pass: [(integer, enum name, short name)]}, "is_always_coupled": bool}.

    The table of operators uses "entry_points", "dtypes", "layouts", "limits" and "examples"
    (problem lines of common forwards). "batch_sizes" says which size of which tensor is the batch.
    """

# The most bytes of a text that is parsed.
MAX_TEXT: int
# Texts that say where the full lists of words are.
IN_POLICIES: str
IN_TEXTS: str
IN_OPERATORS: str

def check_length(what: str, text: str) -> None:
    """Raise ValueError for more than MAX_TEXT bytes."""

def nearest_words(word: str, known: list[str]) -> list[str]:
    """At most five known words that differ in the fewest letters; ``*`` stands for any text."""

def wanted_words(word: str, known: list[str], all: str) -> str:
    """ "wanted one of ..."; of many words the nearest, and ``all``, which says where all are."""

def families_with(algorithm: str) -> list[str]:
    """The families whose common problems have an algorithm; none for a graph API engine."""

# Devices.

def add_target(name: str, device_properties_json: str) -> None: ...
def device_fingerprint(device: str) -> str: ...
def device_state(device: str) -> DeviceState: ...
def versions() -> dict[str, str]:
    """ "torch", "cudnn" (run time), "cudnn_header", "cudart"."""

def cudnn_files() -> list[str]:
    """Paths of all mapped libcudnn files, in order of mapping."""

# What is known of versions. Versions are numbers, 92801 for cuDNN 9.28.1 and 21100 for PyTorch
# 2.11.0, and 0 stands for the loaded one. A capability is 90 for 9.0, and 0 if it is not known.

def errata(cudnn: int = 0, pytorch: int = 0, capability: int = 0) -> list[Erratum]: ...
def erratum_concerns(id: str, problem: str, algorithm: str, notes: list[str]) -> bool:
    """Whether a row is about this algorithm on this problem, in whatever version."""

def lift_errata(ids: list[str]) -> None:
    """Take guards off in this process, to see whether defects are still there; [] restores all."""

def library_versions() -> dict[str, int]:
    """The versions of "cuDNN" and "PyTorch" that errata and hints go by."""

def override_library_version(library: str, version: int) -> None:
    """For tests: errata and hints go by a made-up version; 0 restores the real one."""

def engine_hints(cudnn: int = 0, capability: int = 0) -> list[EngineHint]: ...
def engine_hint_for(problem: str) -> str | None:
    """The id of the row that a problem has, whether it is on or not."""

def verified_platforms() -> list[VerifiedPlatform]: ...
def caution(cudnn: int, capability: int) -> str:
    """What the user is told once of a platform that is not verified; empty if it is."""

def capability(device: str) -> int: ...

# Selecting algorithms.
OUT_OF_MEMORY: str  # occurs in the reason of an algorithm that ran out of memory
OUT_OF_TIME: str  # begins the reason of an algorithm that was not tried

def ignores_other_work() -> bool: ...
def ignore_other_work(ignore: bool) -> None:
    """Whether times count as they are, although other work disturbs them; for tests."""

def set_measurement_lock(path: str) -> None:
    """Processes with the same file build at the same time, but run and time one by one."""

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
    energy: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    levels: bool = True,
    prunes: bool = False,
    failed: dict[str, str] = ...,
    before_run: Callable[[str], None] | None = None,
) -> list[Measurement]:
    """Time candidates on scratch memory; ranked best first, then the others with reasons.

    ``time_budget_s`` 0 means no limit. ``record`` stores the ranking in the tuning table. Without
    ``levels`` only the policy and PyTorch's switches hold: no knobs, flags or `enable`.
    ``progress(done, total, algorithm)`` may raise (KeyboardInterrupt): then nothing is stored.
    ``energy`` also measures the energy of the fastest, if the driver tells it.
    ``prunes`` leaves out configurations of a run-time compiled engine if others of it are slow.
    ``failed`` names algorithms that have failed for a reason and are not tried.
    ``before_run(algorithm)`` is called before an algorithm is built, first run and sampled, outside
    of what is timed, and with an empty text before work that runs no algorithm.
    """

def set_isolated_measure(
    function: Callable[[str, str, str, float, int, bool], list[Measurement]],
) -> None:
    """Set who measures for calls that tune while isolation is on, in another process.

    It takes problem, device, policy, time budget, least number of samples and whether to prune. A
    RuntimeError means that it cannot measure: the heuristic's algorithm runs then.
    """

def is_isolated(device: str, isolate: str) -> bool:
    """Whether candidates are measured in another process: "auto", "always" or "never"."""

def set_local_errata(rows: list[tuple[str, str, str, str]]) -> None:
    """Set what is unsupported: device fingerprint, problem, algorithm and reason; forgets plans."""

def decide(problem: str, device: str, policy: str = "") -> Decision:
    """What an operator would run now (tunes if the policy says so)."""

def run(
    problem: str,
    algorithm: str,
    tensors: dict[str, Tensor],
    policy: str = "",
    replay: str = "never",
) -> dict[str, Tensor]:
    """Run one algorithm on given tensors, by role ("x", "w", "y"); outputs may be absent.

    Returns the tensors that it computed or changed. ``replay`` is "never", "graphs" or "kernels" as
    in an operator's call. If the plan ran before, it may be "graphs_at_once" or "kernels_at_once".
    """

def scratch(problem: str, device: str, seed: int = 0) -> dict[str, Tensor]:
    """Random inputs for a problem, by role."""

def reference(problem: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The float64 results by role, on the tensors' device."""

def relative_error(result: Tensor, reference: Tensor) -> float:
    """The error that a candidate is judged by; NaN if it is not finite."""

def tolerance(problem: str, notes: list[str]) -> float:
    """The relative error above which a candidate is rejected."""

def last_decision(op: str | None = None) -> Decision | None: ...
def executed_decisions() -> list[ExecutedDecision]:
    """All decisions by which calls ran so far, with their ``calls``."""

def problems_posed_by(call: Callable[[], object]) -> list[str]:
    """The problem lines that operators pose on this thread while ``call`` runs, in order.

    They compute nothing: their results have sizes and strides, and no values.
    """

# State.
def set_workspace_reserve(bytes_by_device: list[int]) -> None:
    """Set how many bytes each CUDA device reserves for workspaces, by its index; 0: none."""

def workspace_reserve_info() -> dict[str, int]:
    """``held_bytes`` of the current device, and the number of workspaces ``served`` in all."""

def admits_all_of(constraints: str, others: str, family: str) -> bool:
    """Whether a ranking under some constraints holds for others, less what those exclude."""

def set_knobs(
    policy_text: str,
    verbose: bool,
    isolate: str = "auto",
    search_budget_s: float | None = None,
) -> None:
    """Process-wide knobs, as one policy text; raises before anything is changed."""

def forget_decisions() -> None:
    """Make all decisions anew at their next calls."""

def replay_obstacle(policy: str, device: str) -> str:
    """Why calls cannot be repeated as the policy's ``replay`` asks; empty if they can."""

def replay_info() -> dict[str, int]:
    """Counts of calls of cuDNN that were repeated without cuDNN.

    As graphs: calls that were ``recorded``, calls that were ``replayed``, and the ``kernels`` that
    the graphs hold now. As single kernels: kinds of calls whose kernels were ``learnt``, and calls
    that were ``relaunched``, kernel by kernel.
    """

def push_flags(policy_text: str) -> int: ...  # this thread
def pop_flags(id: int) -> None: ...
def enabled_policy(family: str = "conv") -> str: ...
def set_enabled_policy(policy_text: str) -> None:
    """Set the policy of enable(), which is stronger than flags and knobs."""

def set_cudnn_pins(policy_text: str) -> None:
    """Set the pins of torch.backends.cudnn.conv_fwd_algo and the like: the weakest level."""

def add_rule(matcher: str, use: str) -> int: ...
def check_rule(matcher: str, use: str) -> str:
    """The policy, with names of operators. Raises ValueError if `add_rule` would raise it."""

def problems_of_rule(id: int) -> int: ...
def remove_rule(id: int) -> None: ...
def enable_overrides(compiled: str = "conv") -> None:
    """Put overrides of PyTorch's operators in its dispatcher; RuntimeError if they are there."""

def set_running_compiled_graph(running: bool) -> bool:
    """Tell whether this thread runs the code of a compiled graph; returns what held before."""

def disable_overrides() -> None: ...
def overrides_enabled() -> bool: ...
def overridden_ops() -> list[str]:
    """Names of operators in namespace aten, with overloads: "convolution", "lstm.input"."""

def declined() -> dict[str, int]:
    """Calls that went to PyTorch's own kernel, by "operator: reason"."""

def reset_declined() -> None: ...
def set_recording(on: bool) -> None:
    """Begin a recording of what this thread, and autograd's threads for it, run; or end the newest.

    Recordings nest: only the newest one records.
    """

def set_model_tracing(on: bool) -> None:
    """While on, this thread, and autograd's threads for it, tune nothing."""

def is_model_tracing() -> bool: ...
def recorded(begin: int = 0) -> list[Decision | str]:
    """What ran since recording began; a text says why PyTorch's own kernel ran."""

def resolved_policy(policy: str | None, family: str = "conv") -> str:
    """All levels but rules, merged: argument, enable, flags, knobs, PyTorch's switches."""

def policy_for(problem: str, policy: str) -> str:
    """As `resolved_policy`, with the rules that match this problem."""

def tuned(
    problem: str, device: str, policy: str = "", time_budget_s: float = 0
) -> list[Measurement] | None:
    """The ranking of a problem in the tuning table, under the policy's constraints.

    None if no algorithm ran, or if autotune left algorithms out, since tuning measures all of them.
    Also None if a time budget left algorithms out that was smaller than ``time_budget_s`` (0: no
    limit).
    """

def constraints_text(problem: str, policy: str) -> str:
    """The constraints under which the tuning table keeps a problem for this policy."""

def table_export() -> list[TableEntry]: ...
def check_measurement(row: dict[str, Any]) -> None:
    """Raise ValueError if a field has a value that a measurement cannot have."""

def table_import(entries: list[TableEntry], measured: bool = False) -> int:
    """Add entries; those that were measured for this process go to the tuning store, too."""

# A ranking, with the device and the constraints that it is of, each empty if it is of those that
# were asked for; or the reason why the heuristic's algorithm is to run.
_Known: TypeAlias = tuple[list[Measurement], str, str] | str

class TuningStore(TypedDict):
    """The functions of a tuning store. A key is a problem, a device's fingerprint and constraints.

    Threads that Python does not know do without.
    """

    find: Callable[[str, str, str], _Known | None]  # a ranking that is not in the table
    claim: Callable[[str, str, str], _Known | None]  # before a call measures: what holds instead
    give_up: Callable[[str, str, str], _Known | None]  # the same, if measuring came to nothing
    add: Callable[[TableEntry], _Known | None]  # what was measured; the same
    problems: Callable[[str, str], list[str]]  # that have rankings for a device and constraints
    record: Callable[[str, str, str], None]  # what nothing was tuned for

def set_tuning_store(functions: TuningStore | None) -> None:
    """Set the tuning store; ``None`` unsets it."""

def measure_counts() -> MeasureCounts:
    """What this process measured, and for how long its calls were searching."""

def table_clear() -> None: ...
def plan_cache_info() -> dict[str, int]:
    """This thread's plan cache: "size", "capacity", "hits", "misses"."""

def plan_cache_clear() -> None: ...
def direct_call(
    operator: str,
    general: Callable[..., Any],
    admit: Callable[[str], bool],
    admitted: dict[str, str],
    names: list[str],
    positional: int,
    slots: list[Any],
    sources: list[tuple[int, int, int, bool, int, int]],
    fixed: list[tuple[int, Any]],
) -> Callable[..., Any]:
    """A function that calls an operator directly, and ``general`` if it does not take a call.

    Args:
        operator: The operator's name.
        general: The function that takes every call.
        admit: Whether the operator takes a policy text; called once for each text.
        admitted: The texts that it has taken.
        names: The parameters.
        positional: How many of them may be given by position.
        slots: The default of every parameter, ``...`` for none, then constants.
        sources: For each argument of the schema its slot, the slot that counts instead of ``None``
            or -1, the length of its list (0: any, -1: any, but one integer is no list), whether it
            must be positive, and the fewest and the most dimensions of a tensor.
        fixed: Slots that no argument reads, and the only value that each may have.
    """
