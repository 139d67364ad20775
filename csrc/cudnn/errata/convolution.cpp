// Errata of cuDNN's convolutions. Those of 9.19 were found by running every engine on an H200 or an
// H100 and comparing its results with float64.
#include "cudnn/errata/conditions.h"
#include "cudnn/problems.h"

namespace torch_cudnn_ext {
namespace {

constexpr Note kConvolutionCompiled = Note::runtime_compilation;

bool is_fused_one_pixel(const ConvolutionProblem& p) {
  return p.has_epilogue() && p.x.numel() == p.x.sizes[0] * p.x.sizes[1];
}

// The filter gradient's engine 19 for half types steps over 8 images at a time.
bool exceeds_int_in_8_images(const ConvolutionProblem& p) {
  int64_t batch = p.x.sizes[0];
  return c10::isReducedFloatingType(p.x.dtype) && batch > 8 &&
         exceeds_int(8 * (std::max(p.x.numel(), p.y.numel()) / batch));
}

bool divides_by_zero(const ConvolutionProblem& p) {
  auto any_above = [](const Dims& numbers, int64_t most) {
    return std::any_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n > most; });
  };
  constexpr int64_t kMostDilation = int64_t{1} << 30, kMostSize = (int64_t{1} << 32) - 1;
  return any_above(p.dilation, kMostDilation) || any_above(p.x.sizes, kMostSize) ||
         any_above(p.w.sizes, kMostSize) || any_above(p.y.sizes, kMostSize);
}

bool is_packed_throughout(const ConvolutionProblem& line) {
  ConvolutionProblem p = lift_to_plane(line);
  return is_packed(p.x) && is_packed(p.w) && is_packed(p.y);
}

// The engines of one channel a group load value by value.
bool is_depthwise_engine(ConvolutionPass pass, const std::string& name) {
  switch (pass) {
    case ConvolutionPass::fwd:
      return name == "eng5";
    case ConvolutionPass::bwd_data:
      return name == "eng6";
    case ConvolutionPass::bwd_filter:
      return name == "eng16" || name == "eng19";
  }
  return false;
}

bool has_unaligned_rows(const ConvolutionProblem& line, const Algorithm& algorithm) {
  ConvolutionProblem p = lift_to_plane(line);
  bool aligned = is_depthwise_engine(p.pass, algorithm.name) ||
                 (has_aligned_rows(p.x) && has_aligned_rows(p.y));
  return !is_packed_throughout(line) || !aligned;
}

bool has_odd_slices(const ConvolutionProblem&, const Algorithm& algorithm) {
  const std::string* slices = algorithm.option("k17");
  int64_t count = slices != nullptr ? std::stoll(*slices) : 1;
  return (count & (count - 1)) != 0;
}

// Engine 80 takes 0.4 GB for 3x3 windows over 16 channels.
bool takes_much_local_memory(const ConvolutionProblem& p) { return p.w.sizes[1] > 16; }

bool is_grouped_float32(const ConvolutionProblem& p) {
  return p.groups > 1 && p.x.dtype == c10::ScalarType::Float;
}

bool has_window_of_5(const ConvolutionProblem& p) {
  return std::any_of(p.w.sizes.begin() + 2, p.w.sizes.end(), [](int64_t n) { return n >= 5; });
}

// What all engines do not support or get wrong, or how they end the process.
const bool convolution_registered = register_errata({
    erratum<ConvolutionProblem>("conv-huge-numbers", divides_by_zero)
        .of("graph")
        .unsupported("strided data gradients divide by zero, and end the process, at dilations "
                     "above 2^30 and sizes of 2^32 and more")
        .seen(kCudnn9_19, "process ended by engines 46 and 49; H200, with 9.26 too")
        .reproduced_by("conv_bwd_data x=f32[3,9,8,7]:nchw w=f32[8,9,1,1]:nchw stride=2 "
                       "dilation=2147483647",
                       "graph:eng46"),
    erratum<ConvolutionProblem>(
        "conv-fused-misaligned",
        [](const ConvolutionProblem& p) { return p.has_epilogue() && p.alignment < 16; })
        .of("graph")
        .unsupported(
            "fused engines do not support, or misread, tensors that are not aligned to 16 bytes")
        .seen(kCudnn9_19, "wrong values; H200"),
    erratum<ConvolutionProblem>("conv-fused-eng8",
                                [](const ConvolutionProblem& p) { return p.has_epilogue(); })
        .of("graph", {"eng8"})
        .in({"fwd"})
        .unsupported("engine 8 computes wrong results of a 1x1 convolution with ReLU, by 80 %")
        .seen(kCudnn9_26, "wrong values; H200, with 9.28.1 too")
        .not_in(kCudnn9_19)
        .reproduced_by("conv_fwd x=f16[16,64,56,56]:nhwc w=f16[256,64,1,1]:nhwc act=relu",
                       "graph:eng8"),
    erratum<ConvolutionProblem>(
        "conv-depthwise-eng61",
        [](const ConvolutionProblem& p) { return p.groups > 1 && p.groups == p.x.sizes[1]; })
        .of("graph", {"eng61"})
        .in({"bwd_filter"})
        .adds(Note::low_accuracy,
              "engine 61 sums filter gradients of depthwise convolutions less accurately")
        .seen(kCudnn9_19, "1.02 of the tolerance; H100, H200, with 9.26 too")
        .reproduced_by("conv_bwd_filter x=f16[32,96,112,112]:nhwc w=f16[96,1,3,3]:nhwc pad=1 "
                       "stride=2 groups=96",
                       "graph:eng61/k2=0/k12=396/k17=792"),
    erratum<ConvolutionProblem>("conv-compiled-rows", has_unaligned_rows)
        .of("graph")
        .having(kConvolutionCompiled)
        .unsupported("run-time compiled engines compute wrong results if rows are not packed "
                     "multiples of 16 bytes; with one channel a group any packed rows are right")
        .seen(kCudnn9_19, "wrong values; H200")
        .reproduced_by("conv_fwd x=f32[2,8,6,6]:s(576,36,6,1) w=f32[8,8,3,3]:nchw pad=1",
                       "graph:eng71"),
    erratum<ConvolutionProblem>(
        "conv-compiled-accumulate",
        [](const ConvolutionProblem& p) { return p.accumulate != Accumulate::none; })
        .of("graph")
        .having(kConvolutionCompiled)
        .unsupported("run-time compiled engines do not accumulate into their result")
        .seen(kCudnn9_19, "wrong values; H200"),
    erratum<ConvolutionProblem>(
        "conv-compiled-flipped",
        [](const ConvolutionProblem& p) { return p.mode == ConvolutionMode::conv; })
        .of("graph")
        .having(kConvolutionCompiled)
        .unsupported("run-time compiled engines do not flip the kernel")
        .seen(kCudnn9_19, "wrong values; H200"),
    erratum<ConvolutionProblem>("conv-compiled-slices", has_odd_slices)
        .of("graph")
        .having(kConvolutionCompiled)
        .unsupported("run-time compiled engines never end if k17, the number of slices of their "
                     "sums, is not a power of 2")
        .seen(kCudnn9_19, "hangs; H200")
        .reproduced_by("conv_bwd_data x=bf16[32,960,7,7]:nhwc w=bf16[160,960,1,1]:nhwc",
                       "graph:eng77/k17=24"),
    erratum<ConvolutionProblem>("conv-eng80-local-memory", takes_much_local_memory)
        .of("graph", {"eng80"})
        .in({"fwd"})
        .unsupported("engine 80 has up to 163 bytes of local memory a thread for each channel of a "
                     "group, for which the driver takes gigabytes of the GPU until the process "
                     "ends")
        .seen(kCudnn9_19, "up to 17 GB taken; H100"),
    erratum<ConvolutionProblem>(
        "conv-eng2-strided-gradient",
        [](const ConvolutionProblem& p) { return !is_packed_throughout(p); })
        .of("graph", {"eng2"})
        .in({"bwd_data"})
        .unsupported("engine 2 writes between the rows of a strided result")
        .seen(kCudnn9_19, "writes outside of the result; H200"),
    erratum<ConvolutionProblem>(
        "conv-eng1-large-gradient",
        [](const ConvolutionProblem& p) { return exceeds_int(p.x.numel()); })
        .of("graph", {"eng1", "eng2"})
        .in({"bwd_data"})
        .unsupported("engines 1 and 2 compute wrong results of 2^31 elements or more")
        .seen(kCudnn9_19, "wrong values; H200")
        .reproduced_by("conv_bwd_data x=f16[32,64,1024,1024]:nhwc w=f16[32,64,3,3]:nhwc pad=1",
                       "graph:eng1"),
    erratum<ConvolutionProblem>("conv-eng19-large-images", exceeds_int_in_8_images)
        .of("graph", {"eng19"})
        .in({"bwd_filter"})
        .unsupported("engine 19 reads memory that is not there if 8 images of a larger batch have "
                     "2^31 elements or more")
        .seen(kCudnn9_19, "context lost; H200")
        .reproduced_by("conv_bwd_filter x=f16[9,64,2048,2048]:nhwc w=f16[32,64,3,3]:nhwc pad=1",
                       "graph:eng19"),
    erratum<ConvolutionProblem>("pytorch-conv-large-images", exceeds_int_in_8_images)
        .of("aten", {"default", "folded", "turned"})
        .in({"bwd_filter"})
        .unsupported("PyTorch's filter gradients of half types, which run engine 19, may read "
                     "memory that is not there if 8 images of a larger batch have 2^31 elements or "
                     "more")
        .seen(kCudnn9_19, "context lost; H200, PyTorch 2.11")
        .reproduced_by("conv_bwd_filter x=f16[9,64,2048,2048]:nhwc w=f16[64,1,3,3]:nhwc pad=1 "
                       "groups=64",
                       "aten:default")
        .reproduced_by("conv_bwd_filter x=f16[9,64,2048,2048]:nhwc w=f16[64,1,3,3]:nhwc pad=1 "
                       "stride=2 groups=64",
                       "aten:default"),
    erratum<ConvolutionProblem>("conv-eng52-one-pixel", is_fused_one_pixel)
        .of("graph", {"eng52", "eng53"})
        .unsupported("engines 52 and 53 leave parts of the result unwritten when they add to "
                     "images of one pixel")
        .seen(kCudnn9_19, "values not written; H200"),
    erratum<ConvolutionProblem>("conv-eng4-one-pixel",
                                [](const ConvolutionProblem& p) {
                                  bool is_bias_alone_or_relu =
                                      p.bias && (p.activation == Activation::none ||
                                                 p.activation == Activation::relu);
                                  return is_fused_one_pixel(p) && !is_bias_alone_or_relu;
                                })
        .of("graph", {"eng4", "eng7"})
        .unsupported("engines 4 and 7 leave parts of the result unwritten when an activation "
                     "follows images of one pixel, but for relu after a bias")
        .seen(kCudnn9_19, "values not written; H200"),
});

// Notes that cuDNN does not give.
const bool registered_notes = register_errata({
    erratum<ConvolutionProblem>("conv-eng17-winograd")
        .of("graph", {"eng17"})
        .in({"bwd_filter"})
        .adds(Note::winograd, "engine 17 is non-fused Winograd, which cuDNN does not note")
        .seen(kCudnn9_19, "errors of Winograd's size; H200"),
    // These two come after what marks an algorithm as Winograd.
    erratum<ConvolutionProblem>("conv-winograd-large-tiles", has_window_of_5)
        .of("graph")
        .of("legacy")
        .having(Note::winograd)
        .adds(Note::low_accuracy,
              "Winograd takes tiles of 13x13 for windows of 5 and more, whose transforms cost some "
              "13 bits")
        .seen(kCudnn9_19, "relative errors of 2e-4 to 4e-3 in float32; H200")
        .reproduced_by("conv_fwd x=f32[8,64,28,28]:nchw w=f32[64,64,5,5]:nchw pad=2",
                       "legacy:winograd_nonfused/math=fma"),
    erratum<ConvolutionProblem>("conv-winograd-range")
        .of("graph")
        .of("legacy")
        .having(Note::winograd)
        .in({"fwd", "bwd_data"})
        .adds(Note::reduced_range,
              "Winograd clamps images to the finite numbers of float32, and NaN becomes the lowest "
              "one")
        .seen(kCudnn9_19, "finite results of infinities and NaN; H100")
        .reproduced_by("conv_fwd x=f32[8,32,28,28]:nchw w=f32[32,32,3,3]:nchw pad=1",
                       "legacy:winograd_nonfused/math=fma", "nan"),
    erratum<ConvolutionProblem>("conv-eng47-infinities",
                                [](const ConvolutionProblem& p) { return !p.has_epilogue(); })
        .of("graph", {"eng47"})
        .in({"fwd"})
        .adds(Note::reduced_range, "engine 47 turns infinities into zeros")
        .seen(kCudnn9_19, "finite results of infinities; H100")
        .reproduced_by("conv_fwd x=f16[2,8,8,8]:nhwc w=f16[8,8,3,3]:nhwc pad=1", "graph:eng47",
                       "one inf"),
    erratum<ConvolutionProblem>("conv-eng32-infinities",
                                [](const ConvolutionProblem& p) { return p.has_epilogue(); })
        .of("graph", {"eng32"})
        .in({"fwd"})
        .adds(Note::reduced_range, "engine 32 with an epilogue turns infinities into zeros")
        .seen(kCudnn9_19, "finite results of infinities; H100")
        .reproduced_by("conv_fwd x=f16[2,8,8,8]:nhwc w=f16[8,8,3,3]:nhwc pad=1 bias=f16",
                       "graph:eng32", "one inf"),
    erratum<ConvolutionProblem>("conv-fused-relu-nan",
                                [](const ConvolutionProblem& p) {
                                  return p.bias && (p.activation == Activation::relu ||
                                                    p.activation == Activation::relu6);
                                })
        .of("graph", {"eng0", "eng11", "eng12", "eng13", "eng14", "eng35", "eng36"})
        .in({"fwd"})
        .adds(Note::reduced_range,
              "engines with a bias and without tensor cores take relu of NaN to be 0")
        .seen(kCudnn9_19, "finite results of NaN; H100")
        .reproduced_by(
            "conv_fwd x=f32[8,64,28,28]:nchw w=f32[64,64,3,3]:nchw pad=1 bias=f32 act=relu",
            "graph:eng11", "nan"),
    erratum<ConvolutionProblem>("conv-eng65-rounds-twice",
                                [](const ConvolutionProblem& p) {
                                  return p.accumulate != Accumulate::none &&
                                         c10::isReducedFloatingType(p.w.dtype);
                                })
        .of("graph", {"eng65"})
        .in({"bwd_filter"})
        .adds(Note::down_convert,
              "engine 65 rounds a filter gradient to its half type before it adds it to what is "
              "there")
        .seen(kCudnn9_19, "errors of two roundings; H200"),
    erratum<ConvolutionProblem>("conv-eng7-grouped-accuracy", is_grouped_float32)
        .of("graph", {"eng7"})
        .in({"bwd_data"})
        .adds(Note::low_accuracy, "engine 7 is less accurate than float32 for grouped gradients")
        .seen(kCudnn9_28_1,
              "wrong values: 2.5 times the tolerance, 32x1024x7x7, 3x3, 32 groups; H200")
        .not_in(kCudnn9_19)
        .reproduced_by("conv_bwd_data x=f32[32,1024,7,7]:nchw w=f32[1024,32,3,3]:nchw pad=1 "
                       "groups=32",
                       "graph:eng7"),
    erratum<ConvolutionProblem>("conv-eng17-grouped-accuracy",
                                [](const ConvolutionProblem& p, const Algorithm& algorithm) {
                                  const std::string* option = algorithm.option("k25");
                                  return is_grouped_float32(p) && option != nullptr &&
                                         *option == "2";
                                })
        .of("graph", {"eng17"})
        .in({"bwd_filter"})
        .adds(Note::low_accuracy,
              "engine 17 with k25=2 is less accurate than float32 for grouped gradients")
        .seen(kCudnn9_28_1,
              "wrong values: 1.6 times the tolerance, 32x1024x7x7, 3x3, 32 groups; H200")
        .not_in(kCudnn9_19)
        .reproduced_by("conv_bwd_filter x=f32[32,1024,7,7]:nchw w=f32[1024,32,3,3]:nchw pad=1 "
                       "groups=32",
                       "graph:eng17/k25=2"),
});

}  // namespace
}  // namespace torch_cudnn_ext
