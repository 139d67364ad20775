"""The grammar of policies and problem lines as data, for errors, documents and the help.

Texts are Markdown. Nothing here imports PyTorch. C++ reads policies and problem lines.
"""

# The values of on_unsupported that let another algorithm run.
FALLING_BACK = ("warn", "fallback")
# The single words that every operator reads for all of its passes.
FOR_ALL = ("autotune", "tuned", "heuristic", "time_on_shape_change", "guess_on_shape_change")
# The words that make a module keep its first algorithm, and the word that selects that algorithm.
ONCE = {"guess_once": "heuristic", "time_once": "autotune"}

# An example of a policy.
POLICY_TEXT = "fwd=legacy:fft;bwd_data=autotune;max_workspace=64MiB;deterministic"
BACKENDS = ("cudnn", "graph", "legacy", "aten", "cpu")
# How selections are written, and what each selects for.
SELECTIONS = {
    "`autotune`, `cpu:im2col` (a word alone)": "all passes that have it, of the operator that "
    "reads the policy",
    "`fwd=…`, `bwd=…`, `bwd_data=…`, `bwd_filter=…`, `infer=…`": "one pass of the operator that "
    "reads the policy",
    "`conv=…`, `softmax=…`": "all passes of a family",
    "`conv_fwd=…`, `softmax_bwd=…`": "one pass of a family",
}
# What a selection is, and examples of algorithms.
SELECTED = "A selection is `autotune`, `tuned`, `heuristic`, or an algorithm."
ALGORITHM = "An algorithm is `backend:name/option=value`:"
ALGORITHMS = ("legacy:fft_tiling/math=fma", "graph:eng67/k2=1/k13=0", "aten:default", "cpu:im2col")

_BOOLEAN: tuple[tuple[type, ...], str] = ((bool,), "True or False")

# Each constraint: the Python types that it takes, and what an error says was wanted.
CONSTRAINTS: dict[str, tuple[tuple[type, ...], str]] = {
    "max_workspace": ((int, str), "bytes as an integer, or a text such as '64MiB' or '20%'"),
    "deterministic": _BOOLEAN,
    "allow_tf32": _BOOLEAN,
    "allow_down_convert": _BOOLEAN,
    "allow_reduced_range": _BOOLEAN,
    "prefer": ((str,), "'time', 'gpu_time', 'memory' or 'energy'"),
    "replay": ((str,), "'off', 'graphs' or 'kernels'"),
    "backends": (
        (str, list, tuple),
        "'cudnn', or a list of 'graph', 'legacy', 'aten', 'cpu', 'cudnn'",
    ),
    "on_unsupported": ((str,), "'error', 'warn' or 'fallback'"),
    "on_miss": ((str,), "'autotune', 'heuristic', 'nearest', 'record' or 'error'"),
    "benchmark": _BOOLEAN,
    "fastest": _BOOLEAN,
    "compute": (
        (str,),
        "'as_input', 'as_input_f32', 'f16', 'f32' or 'f64', for all types of data or by type: "
        "'f16:f32,bf16:f32'",
    ),
}

# The passes of inference: a family with both has one for training and one for inference.
FORWARDS = ("fwd", "infer")
PASS_WORDS = (*FORWARDS, "bwd", "bwd_data", "bwd_filter")
DTYPE_WORDS = ("f64", "f32", "f16", "bf16")
PROBLEM_LINE = (
    "conv_fwd x=f16[64,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1 stride=1 dilation=1 groups=1 "
    "compute=f32"
)
# The parts of a problem line, and what each means.
PROBLEM_PARTS = {
    "`conv_fwd`": "The family and the pass. A convolution's line is always written in the words of "
    "the forward convolution.",
    "`x=f16[64,64,56,56]:nhwc`": "A tensor: its type, its sizes in the order batch, channels, "
    "space, and its layout.",
    "`f64`, `f32`, `f16`, `bf16`": "Types.",
    "`:nchw`, `:nhwc`, `:s(3136,49,7,1)`": "Layouts: contiguous, channels-last (both of any rank), "
    "or the strides.",
    "three, four, five sizes": "Convolution over one, two, three dimensions of space.",
    "`pad=1`, `stride=2,1`": "One number for all dimensions of space, or one for each.",
    "`compute=f32`": "The type of accumulation.",
    "`align=16`": "What all addresses are multiples of, in bytes.",
    "`train=true`": "A forward that saves what its backward reads.",
    "`# conv1 x3`": "A comment: the layers that have the problem, and how often.",
}
CONVOLUTION_FIELDS = (
    "They stand in this order: `x`, `w`, `pad`, `stride`, `dilation`, `groups`, `compute`, `y`, "
    "`align`, `mode`, `bias`, `z`, `act`, `accumulate`. Those from `pad` on may be left out if "
    "they have their defaults."
)
