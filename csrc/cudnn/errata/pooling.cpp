// Errata of cuDNN's pooling.
#include "cudnn/errata/conditions.h"
#include "cudnn/problems.h"

namespace torch_cudnn_ext {
namespace {

constexpr Note kPoolingCompiled = Note::runtime_compilation;

bool is_average(const PoolingProblem& p) { return p.mode != PoolingMode::max; }

bool is_bf16_without_indices(const PoolingProblem& p) {
  return !keeps_indices(p) && p.x.dtype == c10::ScalarType::BFloat16;
}

// All kernels over planes except the gradients of maxima have one block row an image if an image
// has this many results.
bool exceeds_grid(const PoolingProblem& p) {
  constexpr int64_t kResultsOfBlock = 256;
  TensorSpec y = p.y();
  bool concerned = p.pass == Pass::fwd || is_average(p);
  return concerned && p.spatial_dims() == 2 && p.x.strides == contiguous_strides(p.x.sizes) &&
         p.x.sizes[0] > kMostBlocks && y.sizes[2] * y.sizes[3] >= kResultsOfBlock;
}

const bool pooling_registered = register_errata({
    erratum<PoolingProblem>("pool-large",
                            [](const PoolingProblem& p, const Algorithm& algorithm) {
                              int64_t most = std::max(p.x.numel(), p.y().numel());
                              return algorithm.name != "eng2" && exceeds_int(most);
                            })
        .of("graph")
        .unsupported("of the engines for pooling only engine 2 is right from 2^31 elements on")
        .seen(kCudnn9_19, "wrong values; H200")
        .reproduced_by("pool_fwd x=f16[33,64,1024,1024]:nhwc window=2 stride=2 mode=avg_include",
                       "graph:eng3")
        .reproduced_by("pool_fwd x=f16[33,64,1024,1024]:nchw window=2 stride=2 mode=avg_include",
                       "graph:eng1"),
    erratum<PoolingProblem>("pool-eng1-large-windows",
                            [](const PoolingProblem& p) {
                              constexpr int64_t kMostResults = 1 << 23, kMostPlaces = 64;
                              return p.y().numel() > kMostResults &&
                                     p.window_volume() > kMostPlaces;
                            })
        .of("graph", {"eng1"})
        .unsupported("engine 1 computes wrong results if there are more than 2^23 of large windows")
        .seen(kCudnn9_19, "wrong values; H200")
        .reproduced_by("pool_fwd x=f32[1,1,32,262145]:nchw window=3,2049 pad=1,1024 stride=1 "
                       "mode=max",
                       "graph:eng1"),
    erratum<PoolingProblem>("pool-grid", exceeds_grid)
        .of("graph", {"eng1"})
        .of("legacy", {"max", "max_deterministic", "avg"})
        .unsupported(kExceedsGrid)
        .seen(kCudnn9_19, "failed at the run; H100, 2026-11-26")
        .reproduced_by("pool_fwd x=f16[65536,1,32,32]:nchw window=2 stride=2 mode=max",
                       "legacy:max"),
    erratum<PoolingProblem>("pool-max-gradient-grid",
                            [](const PoolingProblem& p) {
                              return (p.pass == Pass::bwd || p.train) &&
                                     p.x.strides == contiguous_strides(p.x.sizes) &&
                                     p.x.sizes[1] > kMostBlocks;
                            })
        .of("legacy", {"max"})
        .unsupported(kExceedsGrid)
        .seen(kCudnn9_19, "failed at the run; H100, 2026-11-26")
        .reproduced_by("pool_fwd x=f32[1,65536,4,4]:nchw window=2 stride=2 mode=max train=true",
                       "legacy:max"),
    erratum<PoolingProblem>("pool-average-gradient", is_average)
        .of("graph")
        .lacking(kPoolingCompiled)
        .in({"bwd"})
        .unsupported("the backward of an average by engines that are not compiled at run time asks "
                     "for tensors that it does not take")
        .seen(kCudnn9_19, "failed at the run; H200")
        .reproduced_by("pool_bwd x=f32[8,16,32,32]:nchw window=2 stride=2 mode=avg_include",
                       "graph:eng1"),
    erratum<PoolingProblem>("pool-bf16-without-indices", is_bf16_without_indices)
        .of("graph")
        .having(kPoolingCompiled)
        .in({"fwd"})
        .unsupported("run-time compiled pooling of bfloat16 that keeps no indices writes outside "
                     "of its result")
        .seen(kCudnn9_19,
              "writes outside of the result; H200. 9.28.1: context lost by engine 3, "
              "adaptive average of 64x2048x7x7; H200")
        .reproduced_by("pool_fwd x=bf16[64,2048,7,7]:nhwc window=7 mode=avg_include", "graph:eng3"),
    // Asked for by number, since another version may note other engines as compiled.
    erratum<PoolingProblem>("pool-bf16-average",
                            [](const PoolingProblem& p) {
                              return is_average(p) && is_bf16_without_indices(p) &&
                                     p.x.strides[1] == 1;
                            })
        .of("graph", {"eng0", "eng2", "eng3"})
        .in({"fwd"})
        .unsupported("engine 3, the first that untuned calls took, gives averages of bfloat16 over "
                     "channels-last images that are not finite; engines 0 and 2 are not known to "
                     "be free of it")
        .seen(kCudnn9_28_1,
              "wrong values: 3,382 of 32x448x14x14, window 2, stride 2, were not finite; "
              "H200")
        .reproduced_by("pool_fwd x=bf16[32,448,14,14]:nhwc window=2 stride=2 mode=avg_include",
                       "graph:eng3"),
    erratum<PoolingProblem>("pool-compiled-pixels",
                            [](const PoolingProblem& p) {
                              auto element = static_cast<int64_t>(c10::elementSize(p.x.dtype));
                              return p.x.sizes[1] * element % 16 != 0;
                            })
        .of("graph")
        .having(kPoolingCompiled)
        .unsupported("run-time compiled engines make misaligned accesses if pixels are not "
                     "multiples of 16 bytes")
        .seen(kCudnn9_19, "context lost; H200"),
    erratum<PoolingProblem>("pool-max-infinite",
                            [](const PoolingProblem& p) { return p.mode == PoolingMode::max; })
        .of("graph")
        .of("legacy")
        .adds(Note::reduced_range,
              "the maximum of a window that holds only -inf is the lowest finite number")
        .seen(kCudnn9_19, "finite results of -inf; H200")
        .fixed_in(kCudnn9_28_1)
        .reproduced_by("pool_fwd x=f32[8,16,32,32]:nchw window=2 stride=2 mode=max", "legacy:max",
                       "-inf"),
    erratum<PoolingProblem>("pool-eng2-nan",
                            [](const PoolingProblem& p) { return p.mode == PoolingMode::max; })
        .of("graph", {"eng2"})
        .in({"fwd"})
        .adds(
            Note::reduced_range,
            "engine 2 ignores NaN: it gives the maximum of the other elements of a window, or -inf")
        .seen(kCudnn9_19, "finite results of NaN; H200, with 9.28.1 too")
        .reproduced_by("pool_fwd x=f32[8,16,32,32]:nhwc window=2 stride=2 mode=max", "graph:eng2",
                       "one nan"),
});

}  // namespace
}  // namespace torch_cudnn_ext
