// Errata of cuDNN's other families.
#include "cudnn/errata/conditions.h"

namespace torch_cudnn_ext {
namespace {

using c10::ScalarType;

bool is_half(const TensorSpec& t) { return c10::isReducedFloatingType(t.dtype); }

Erratum misaligned_compiled() {
  Erratum row;
  row.id = "compiled-misaligned";
  row.families = {ConvolutionProblem::kFamily, PoolingProblem::kFamily, LayerNormProblem::kFamily};
  row.condition = [](const Problem& p, const Algorithm&) { return alignment_of_tensors(p) < 16; };
  row.of("graph")
      .having(Note::runtime_compilation)
      .unsupported(
          "run-time compiled engines make misaligned accesses if tensors are not aligned "
          "to 16 bytes, and the process loses its GPU context")
      .seen(kCudnn9_19, "context lost; H200")
      .reproduced_by("pool_fwd x=f16[8,64,28,28]:nhwc window=2 stride=2 mode=avg_include align=2",
                     "graph:eng3");
  return row;
}

const bool registered_norms = register_errata({
    misaligned_compiled(),
    // An instance norm is what a group norm is made of.
    erratum<LayerNormProblem>("instance-norm-default-stream",
                              [](const LayerNormProblem& p) {
                                return p.kind == LayerNormKind::instance ||
                                       p.kind == LayerNormKind::group;
                              })
        .of("graph", {"eng0"})
        .in({"bwd"})
        .unsupported("engine 0 adds up the gradients of an instance norm's parameters on the "
                     "default stream, whatever stream it runs on: they are wrong on others, zero "
                     "in CUDA graphs, and memory is written that may be another's by then")
        .seen(kCudnn9_19, "wrong values on other streams; H200"),
    erratum<LayerNormProblem>(
        "instance-norm-misaligned",
        [](const LayerNormProblem& p) { return is_half(p.x) && p.alignment < 16; })
        .of("legacy")
        .unsupported("the classic API makes misaligned accesses in half types if tensors are not "
                     "aligned to 16 bytes, and the process loses its GPU context")
        .seen(kCudnn9_19, "context lost; H100")
        .reproduced_by("layer_norm_fwd x=f16[4,16,64]:nchw kind=instance w=f16 bias=f16 align=2",
                       "legacy:spatial_persistent"),
    erratum<LayerNormProblem>("instance-norm-persistent-range")
        .of("legacy", {"spatial_persistent"})
        .adds(Note::reduced_range,
              "for float32 and float16 data it may sum scaled integers, which overflow if values "
              "are large")
        .seen(kCudnn9_19, "values that are not finite of large numbers; H200"),
    erratum<SoftmaxProblem>("softmax-nan",
                            [](const SoftmaxProblem& p) {
                              return p.x.sizes[2] == 1 && p.x.dtype != ScalarType::Double;
                            })
        .of("legacy")
        .in({"fwd"})
        .adds(Note::reduced_range,
              "the result of a contiguous row of -inf, which is NaN, is zero, and the logarithm "
              "-inf")
        .seen(kCudnn9_19, "finite results of -inf; H100")
        .reproduced_by("softmax_fwd x=f32[6,10,1]:nchw", "legacy:accurate", "-inf"),
    erratum<LrnProblem>("lrn-nan")
        .of("legacy")
        .adds(Note::reduced_range,
              "across channels NaN is dropped, or spreads to channels that share no window; means "
              "are NaN also for windows near those that hold an infinity")
        .seen(kCudnn9_19, "finite results of NaN; H100")
        .reproduced_by("lrn_fwd x=f32[2,16,25]:nchw kind=cross_channel size=5",
                       "legacy:cross_channel", "one nan"),
    erratum<LrnProblem>("lrn-grid",
                        [](const LrnProblem& p) {
                          constexpr int64_t kSpecialWindow = 5;  // has its own kernels, for float32
                          bool as_f32 =
                              p.x.dtype == ScalarType::Float || p.x.dtype == ScalarType::BFloat16;
                          return p.kind == LrnKind::cross_channel && p.size == kSpecialWindow &&
                                 as_f32 && p.x.sizes[0] > kMostBlocks;
                        })
        .of("legacy")
        .unsupported(kExceedsGrid)
        .seen(kCudnn9_19, "failed at the run; H100, 2026-11-26")
        .reproduced_by("lrn_fwd x=f32[65536,8,4]:nchw kind=cross_channel size=5",
                       "legacy:cross_channel"),
    erratum<LrnProblem>(
        "lrn-even-divisive-gradient",
        [](const LrnProblem& p) { return p.size % 2 == 0 && p.kind == LrnKind::divisive; })
        .of("legacy")
        .in({"bwd"})
        .unsupported("the gradient of an even window is not that of its forward")
        .seen(kCudnn9_19, "wrong values; H200")
        .reproduced_by("lrn_bwd x=f32[2,8,16,16]:nchw kind=divisive size=4",
                       "legacy:precomputed_means"),
});

bool runs_kernel_35(const Algorithm& algorithm) {
  const std::string* kernel = algorithm.option("k24");
  return kernel != nullptr && *kernel == "35";
}

const bool registered_elementwise = register_errata({
    erratum<ActivationProblem>("activation-kernel-35",
                               [](const ActivationProblem&, const Algorithm& algorithm) {
                                 return runs_kernel_35(algorithm);
                               })
        .of("graph")
        .unsupported("kernel 35 fails when it runs on some sizes")
        .seen(kCudnn9_19, "failed at the run; H200"),
    erratum<TransformProblem>("transform-kernel-35",
                              [](const TransformProblem&, const Algorithm& algorithm) {
                                return runs_kernel_35(algorithm);
                              })
        .of("graph")
        .unsupported("kernel 35 fails when it runs on some sizes")
        .seen(kCudnn9_19, "failed at the run of activations; H200"),
    erratum<ActivationProblem>(
        "activation-clipped-relu-infinities",
        [](const ActivationProblem& p) { return p.kind == ActivationKind::clipped_relu; })
        .of("graph")
        .in({"bwd"})
        .adds(Note::reduced_range,
              "blocked gradients are multiplied by zero, which gives NaN for infinities")
        .seen(kCudnn9_19, "NaN for infinities; H100")
        .reproduced_by("activation_bwd x=f32[4096]:nchw kind=clipped_relu coefficient=6",
                       "graph:eng1", "inf"),
    erratum<ActivationProblem>("activation-clipped-relu-half",
                               [](const ActivationProblem& p) {
                                 return p.kind == ActivationKind::clipped_relu && is_half(p.x);
                               })
        .of("legacy")
        .in({"bwd"})
        .unsupported("the gradient at the ceiling differs in half types")
        .seen(kCudnn9_19, "wrong values at the ceiling; H200"),
    erratum<ActivationProblem>("activation-elu-at-zero",
                               [](const ActivationProblem& p) {
                                 return p.kind == ActivationKind::elu && p.coefficient != 1;
                               })
        .of("legacy")
        .in({"bwd"})
        .unsupported("the gradient of ELU at zero is 1, not alpha")
        .seen(kCudnn9_19, "wrong values at zero; H200"),
    erratum<AffineGridProblem>(
        "affine-grid-grid",
        [](const AffineGridProblem& p) { return p.grid.sizes[0] > kMostBlocks; })
        .of("legacy")
        .in({"fwd"})
        .unsupported(kExceedsGrid)
        .seen(kCudnn9_19, "failed at the run; H100, 2026-11-26")
        .reproduced_by("affine_grid_fwd theta=f32[65536,2,3]:nchw grid=f32[65536,2,2,2]:nchw "
                       "align_corners=true",
                       "legacy:default"),
});

const bool registered_products = register_errata({
    erratum<MatmulProblem>("matmul-eng0-misaligned",
                           [](const MatmulProblem& p) { return p.alignment < 16; })
        .of("graph", {"eng0"})
        .unsupported("engine 0 fails when it runs on tensors that are not aligned to 16 bytes")
        .seen(kCudnn9_19, "failed at the run; H200")
        .reproduced_by("matmul_fwd x=f16[1,64,64]:nchw w=f16[1,64,64]:nchw align=2", "graph:eng0"),
    erratum<MatmulProblem>("matmul-eng2-rows",
                           [](const MatmulProblem& p) {
                             bool aligned = has_aligned_rows(p.x) && has_aligned_rows(p.w);
                             return p.alignment < 16 || !aligned;
                           })
        .of("graph", {"eng2"})
        .unsupported("engine 2 computes wrong results if rows are not aligned to 16 bytes")
        .seen(kCudnn9_19, "wrong values; H200")
        .reproduced_by("matmul_fwd x=f32[1,13,29]:nchw w=f32[1,29,7]:nhwc", "graph:eng2"),
    erratum<MatmulProblem>("matmul-eng0-relu6",
                           [](const MatmulProblem& p) { return p.activation == Activation::relu6; })
        .of("graph", {"eng0"})
        .unsupported("engine 0 ignores the upper bound of relu6")
        .seen(kCudnn9_19, "wrong values; H200")
        .reproduced_by("matmul_fwd x=f16[1,256,2048]:nchw w=f16[1,2048,1000]:nchw act=relu6",
                       "graph:eng0"),
    erratum<MatmulProblem>("matmul-tf32",
                           [](const MatmulProblem& p) { return p.x.dtype == ScalarType::Float; })
        .of("graph")
        .adds(Note::tf32, "products of float32 are TF32, which cuDNN does not note of engine 0")
        .seen(kCudnn9_19, "errors of TF32's size; H200"),
    erratum<MatmulProblem>("matmul-eng2-nonfinite",
                           [](const MatmulProblem& p) { return p.x.dtype == ScalarType::BFloat16; })
        .of("graph", {"eng2"})
        .adds(Note::reduced_range, "engine 2 turns infinities and NaN of bfloat16 into zeros")
        .seen(kCudnn9_19, "finite results of infinities and NaN; H100")
        .reproduced_by("matmul_fwd x=bf16[1,64,64]:nchw w=bf16[1,64,64]:nchw", "graph:eng2", "nan"),
    erratum<ReduceProblem>("reduce-sums-differ",
                           [](const ReduceProblem& p) {
                             return p.kind == ReduceKind::add || p.kind == ReduceKind::mul;
                           })
        .of("graph")
        .adds(Note::nondeterministic,
              "sums differ from run to run, and products may, which cuDNN does not note")
        .seen(kCudnn9_19, "bits differ between runs; H200"),
    erratum<ReduceProblem>("reduce-extremes-nan",
                           [](const ReduceProblem& p) {
                             return p.kind != ReduceKind::add && p.kind != ReduceKind::mul;
                           })
        .of("graph")
        .adds(Note::reduced_range, "minima and maxima drop NaN")
        .seen(kCudnn9_19, "finite results of NaN; H100")
        .reproduced_by("reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=max", "graph:eng1",
                       "nan"),
    erratum<ReduceProblem>("reduce-extremes-infinite",
                           [](const ReduceProblem& p) {
                             return p.kind == ReduceKind::min || p.kind == ReduceKind::max;
                           })
        .of("legacy")
        .adds(Note::reduced_range,
              "the minimum of values that are all inf is finite, and so is the maximum of -inf "
              "alone")
        .seen(kCudnn9_19, "finite results of -inf; H100")
        .reproduced_by("reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=max",
                       "legacy:default", "-inf"),
    erratum<CtcProblem>("ctc-other-classes")
        .of("legacy")
        .adds(Note::reduced_range,
              "classes that are in no target are read, so that their NaN and infinities reach the "
              "loss; their gradients are finite though PyTorch's are NaN")
        .seen(kCudnn9_19, "values that are not finite; H100"),
    erratum<CtcProblem>("ctc-few-labels")
        .of("legacy")
        .works_around("three floats a state are reserved in shared memory, but one is written for "
                      "each thread of a warp: targets are declared to have 5 labels at least")
        .seen(kCudnn9_19, "writes out of bounds in shared memory, for short targets; H200"),
    erratum<CtcProblem>("ctc-blank-labels")
        .of("legacy")
        .works_around("an assertion ends the GPU's context if a target holds the blank: its label "
                      "is replaced, and its loss is NaN")
        .seen(kCudnn9_26, "context lost; H100"),
});

}  // namespace
}  // namespace torch_cudnn_ext
