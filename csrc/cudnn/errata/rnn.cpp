// Errata of cuDNN's recurrent networks, which PyTorch's own call runs as well.
#include "cudnn/errata/conditions.h"

namespace torch_cudnn_ext {
namespace {

constexpr auto kHalf = c10::ScalarType::Half, kFloat = c10::ScalarType::Float;
constexpr const char* kSmallH = "persist_static_small_h";

bool converts(const RnnProblem& p, const Algorithm& algorithm) {
  return p.x.dtype == kFloat && has_math(algorithm, {"tensor_op_allow_conversion"});
}

// Hidden sizes up to 192 and batches up to 128 were tried.
bool is_wrong_on_tensor_cores(const RnnProblem& p) {
  bool persistent = p.gates() > 1 && p.proj == 0 && p.lengths == RnnLengths::full;
  bool odd_hidden = p.hidden > 32 && p.hidden <= 192 && p.hidden % 8 == 0 && p.hidden % 32 != 0;
  return persistent && odd_hidden && p.batch() % 8 == 0;
}

const bool rnn_registered = register_errata({
    erratum<RnnProblem>("rnn-projection",
                        [](const RnnProblem& p, const Algorithm& algorithm) {
                          return p.proj > 0 && p.x.dtype == kFloat &&
                                 has_math(algorithm, {"fma", "tensor_op_allow_conversion"});
                        })
        .of("legacy")
        .unsupported("it writes past the end of its results with a projection and this math type")
        .seen(kCudnn9_19, "writes outside of the result; H200")
        .reproduced_by("rnn_fwd cell=lstm x=f32[50,16,240]:nchw hidden=512 proj=128 layers=2",
                       "legacy:standard/math=tensor_op_allow_conversion"),
    erratum<RnnProblem>("rnn-persist-static-nan",
                        [](const RnnProblem& p, const Algorithm& algorithm) {
                          return p.train && p.cell == RnnCell::lstm && p.x.dtype == kHalf &&
                                 has_math(algorithm, {"tensor_op", "tensor_op_allow_conversion"}) &&
                                 p.hidden % 16 == 8 && p.batch() % 2 == 1 && p.batch() < 8;
                        })
        .of("legacy", {"persist_static"})
        .unsupported("the gradients of this algorithm may be NaN on tensor cores for float16 LSTMs "
                     "of a hidden size that is an odd multiple of 8 and a batch of 1, 3, 5 or 7")
        .seen(kCudnn9_19, "NaN for 84 of 645 pairs of sizes; H100, 2026-11-27")
        .reproduced_by("rnn_fwd cell=lstm x=f16[64,5,11]:nchw hidden=72 train=true",
                       "legacy:persist_static/math=tensor_op"),
    erratum<RnnProblem>(
        "rnn-small-h-gradient",
        [](const RnnProblem& p) { return p.train && p.hidden > (p.gates() == 1 ? 256 : 128); })
        .of("legacy", {kSmallH})
        .unsupported("this algorithm has no gradient of hidden sizes above 128, or above 256 in "
                     "networks without gates")
        .seen(kCudnn9_19, "failed at the run; H200")
        .reproduced_by("rnn_fwd cell=lstm x=f16[6,3,128]:nchw hidden=160 train=true",
                       "legacy:persist_static_small_h/math=default"),
    erratum<RnnProblem>("rnn-small-h-converts",
                        [](const RnnProblem& p, const Algorithm& algorithm) {
                          return converts(p, algorithm) && p.cell == RnnCell::lstm &&
                                 p.hidden > 160 && p.batch() % 8 == 0;
                        })
        .of("legacy", {kSmallH})
        .unsupported("this algorithm fails at the run if float32 LSTMs of hidden sizes above 160 "
                     "are converted for tensor cores")
        .seen(kCudnn9_19, "failed at the run; H200")
        .reproduced_by("rnn_fwd cell=lstm x=f32[6,16,128]:nchw hidden=176",
                       "legacy:persist_static_small_h/math=tensor_op_allow_conversion"),
    erratum<RnnProblem>("rnn-small-h-wrong",
                        [](const RnnProblem& p, const Algorithm& algorithm) {
                          bool half = p.x.dtype == kHalf && has_math(algorithm, {"tensor_op"});
                          return (half || converts(p, algorithm)) && is_wrong_on_tensor_cores(p);
                        })
        .of("legacy", {kSmallH})
        .unsupported("this algorithm computes wrong results on tensor cores if the hidden size, "
                     "above 32, is a multiple of 8 but not of 32, and the batch size is a multiple "
                     "of 8")
        .seen(kCudnn9_19, "errors of 4 to 54 %; H100 and H200")
        .reproduced_by("rnn_fwd cell=gru x=f16[6,16,128]:nchw hidden=80",
                       "legacy:persist_static_small_h/math=tensor_op"),
    erratum<RnnProblem>(
        "pytorch-rnn-small-h",
        [](const RnnProblem& p) { return p.x.dtype == kHalf && is_wrong_on_tensor_cores(p); })
        .of("aten", {"default"})
        .comes_last("PyTorch runs persist_static_small_h for float16, which computes wrong results "
                    "for these sizes")
        .seen(kCudnn9_19, "errors of 4 to 54 %; H100 and H200, PyTorch 2.11")
        .reproduced_by("rnn_fwd cell=gru x=f16[6,16,128]:nchw hidden=80", "aten:default"),
    erratum<RnnProblem>(
        "rnn-persist-static-reads-past",
        [](const RnnProblem& p) { return p.cell == RnnCell::lstm && p.x.dtype == kHalf; })
        .of("legacy", {"persist_static"})
        .in({"bwd"})
        .works_around("the gradient of float16 LSTMs on tensor cores reads up to 464 bytes past "
                      "the end of the matrices: room is allocated after them")
        .seen(kCudnn9_19, "reads out of bounds by compute-sanitizer, hidden sizes below 32"),
});

}  // namespace
}  // namespace torch_cudnn_ext
