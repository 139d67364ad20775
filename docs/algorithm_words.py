"""What each algorithm is, in one sentence. A test compares the names with the code's.

Engines of the graph API have no words: their numbers belong to a version of cuDNN.
"""

BASELINE = "PyTorch's own kernel, the baseline of every table."

# By "family backend:name", without the options.
WORDS: dict[str, str] = {
    "activation cpu:exponential": "Sigmoid and SiLU from one exponential, tanh from `expm1`.",
    "activation cpu:hyperbolic": "Sigmoid and SiLU from `cosh`, tanh from `expm1`.",
    "activation legacy:default": "cuDNN's one algorithm of the classic API.",
    "affine_grid cpu:dense": "All points of the regular grid times the transposed maps.",
    "affine_grid cpu:separable": "An outer sum: a coordinate varies along one dimension only.",
    "affine_grid legacy:default": "cuDNN's grid generator.",
    "batch_norm cpu:chunked": "Statistics of a share of the samples at a time, then merged.",
    "batch_norm cpu:two_pass": "The mean of the whole, then the squares around it.",
    "batch_norm legacy:per_activation": "Statistics of each activation. For data without space.",
    "batch_norm legacy:spatial": "Statistics over batch and space.",
    "batch_norm legacy:spatial_persistent": (
        "The same in one kernel that keeps its data, with sums of scaled integers."
    ),
    "conv aten:folded": (
        "For images of up to 4 channels in channels-last: columns of pixels become channels."
    ),
    "conv aten:im2col": "Copies what is under each window, then one product of matrices.",
    "conv aten:matmul": "One product of matrices, for windows that do not overlap.",
    "conv aten:turned": (
        "The data gradient as a forward with turned filters, with blocks of pixels as channels."
    ),
    "conv cpu:direct": "One product of matrices for each tap of the filter, without copies.",
    "conv cpu:fft": "Products in the frequency domain.",
    "conv cpu:im2col": "Copies what is under each window, then one product of matrices.",
    "conv legacy:algo_0": "cuDNN's first gradient algorithm, which adds up in no fixed order.",
    "conv legacy:algo_1": "cuDNN's second gradient algorithm, which is deterministic.",
    "conv legacy:algo_3": "As `algo_0`, with a small workspace for indices.",
    "conv legacy:direct": "A direct convolution, which cuDNN names and does not have.",
    "conv legacy:fft": "Fourier transforms of whole images. Needs a large workspace.",
    "conv legacy:fft_tiling": "Fourier transforms of tiles. Needs less workspace.",
    "conv legacy:gemm": "Copies what is under each window, then one product of matrices.",
    "conv legacy:implicit_gemm": "A product of matrices whose copies are never in memory.",
    "conv legacy:implicit_precomp_gemm": "The same, with precomputed indices in a workspace.",
    "conv legacy:winograd": "Winograd's minimal filtering with tiles, in one kernel.",
    "conv legacy:winograd_nonfused": "Winograd's minimal filtering in several kernels.",
    "ctc cpu:forward_backward": "Keeps logarithms of the forward and backward variables.",
    "ctc cpu:rescaled": "Keeps the variables in float64, divided by their sum at each step.",
    "ctc legacy:deterministic": "cuDNN's loss with results that repeat.",
    "ctc legacy:non_deterministic": "cuDNN's faster loss, whose sums have no fixed order.",
    "dropout cpu:geometric": "Draws the distances between elements of the rarer kind.",
    "dropout cpu:threshold": "Compares a uniform number for each element with p.",
    "dropout legacy:default": "cuDNN's dropout, with cuDNN's own random numbers.",
    "grid_sample cpu:dense": "A product with a matrix of weights of all pixels.",
    "grid_sample cpu:gather": "Reads the corners of each point's cell by index.",
    "grid_sample legacy:bilinear": "cuDNN's sampler.",
    "layer_norm cpu:one_pass": "Both sums in one pass, shifted by the first element.",
    "layer_norm cpu:two_pass": "The mean first, then the squares around it.",
    "layer_norm legacy:spatial": "A batch norm of one sample whose channels are all instances'.",
    "layer_norm legacy:spatial_persistent": "As `spatial`, by the persistent batch norm.",
    "lrn cpu:prefix": "Window sums as differences of running sums in float64.",
    "lrn cpu:shifted": "One addition for each element of the window.",
    "lrn legacy:cross_channel": "cuDNN's local response norm across channels.",
    "lrn legacy:precomputed_means": "cuDNN's divisive norm over space.",
    "matmul cpu:blocked": "Sums products of blocks, so that both factors stay in the cache.",
    "matmul cpu:dot": "Computes each element as one sum of products.",
    "pool aten:taps": (
        "A maximum without indices: one sweep over the output for each position of the window. "
        "Needs no memory."
    ),
    "pool cpu:taps": "One sweep over the output for each position of the window.",
    "pool cpu:unfold": "Gathers all windows into rows, and reduces the rows.",
    "pool legacy:avg": "cuDNN's average pooling; sums are averages times the count.",
    "pool legacy:max": "cuDNN's maximum pooling.",
    "pool legacy:max_deterministic": "cuDNN's maximum pooling with a gradient that repeats.",
    "reduce cpu:serial": "Strips of neighbours with running results.",
    "reduce cpu:tree": "Combines one half with the other until one element is left.",
    "reduce legacy:default": "cuDNN's reduction of the classic API.",
    "rnn cpu:fused": "One product for the inputs of all gates of all time steps.",
    "rnn cpu:unrolled": "Every time step makes its own products.",
    "rnn legacy:persist_dynamic": "As `persist_static`, with code that is made at run time.",
    "rnn legacy:persist_static": "One kernel that keeps the recurrent weights on the chip.",
    "rnn legacy:persist_static_small_h": "As `persist_static`, for small hidden sizes.",
    "rnn legacy:standard": "One product after the other for each time step.",
    "softmax aten:transposed": "PyTorch's kernel for rows, over copied rows.",
    "softmax cpu:online": "Maximum and sum in one pass by blocks.",
    "softmax cpu:three_pass": "The maximum, then exponentials and their sum, then the quotient.",
    "softmax legacy:accurate": "Subtracts the maximum first.",
    "softmax legacy:fast": "Does not subtract the maximum. Large values overflow.",
    "transform cpu:gather": "Every element in the order of the result's memory.",
    "transform cpu:tiles": "Squares of two dimensions through a buffer.",
    "transform legacy:default": "cuDNN's conversion of layouts, of one type.",
}
