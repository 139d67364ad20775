// PyTorch's own convolution: the baseline of every table, and the last resort. In addition
// PyTorch's matrix product (cuBLAS), which is often faster if windows do not overlap, and sometimes
// if they must be copied for it; and, for few channels, PyTorch's convolution of more. All of them
// read PyTorch's global switches, which are never changed here; the plan's notes tell what these
// imply.
#include <functional>

#include "backends/aten/matmul_convolution.h"
#include "backends/aten/plan.h"
#include "backends/aten/rewritten_convolution.h"
#include "core/errata.h"
#include "core/tensors.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::aten {
namespace {

// On the CPU, oneDNN and PyTorch's layout depend on the strides of dimensions of size 1, which are
// arbitrary: grouped convolutions go wrong by them.
Tensor with_strides_of(const TensorSpec& spec, const Tensor& t) {
  return t.is_cpu() ? strided_view(t, spec.sizes, spec.strides) : t;
}

// Whether alpha and beta scale a result in f16. PyTorch's kernel rounds it before, so that it may
// overflow.
bool is_scaled_in_f16(const ConvolutionProblem& p) {
  return p.accumulate == Accumulate::general && p.x.dtype == at::kHalf;
}

// Computes in f32 if the result is scaled in f16.
Tensor convolve(const ConvolutionProblem& p, const Bindings& b) {
  const Dims none(p.spatial_dims(), 0);
  auto given = [&](Role role, const TensorSpec& spec) {
    Tensor t = with_strides_of(spec, b[role]);
    return is_scaled_in_f16(p) ? t.to(at::kFloat) : t;
  };
  if (p.pass == ConvolutionPass::fwd) {
    return at::convolution(given(Role::x, p.x), flip_for_mode(p, given(Role::w, p.w)),
                           b[Role::bias], p.stride, p.padding, p.dilation, false, none, p.groups);
  }
  // PyTorch asks for the tensor whose gradient is wanted, of which it reads sizes and layout only.
  bool data = p.pass == ConvolutionPass::bwd_data;
  Tensor dy = given(Role::y, p.y);
  Tensor x = data ? at::empty_strided(p.x.sizes, p.x.strides, dy.options()) : given(Role::x, p.x);
  Tensor w = data ? flip_for_mode(p, given(Role::w, p.w))
                  : at::empty_strided(p.w.sizes, p.w.strides, dy.options());
  auto gradients = at::convolution_backward(dy, x, w, c10::nullopt, p.stride, p.padding, p.dilation,
                                            false, none, p.groups, {data, !data, false});
  return data ? std::get<0>(gradients) : flip_for_mode(p, std::get<1>(gradients));
}

// A convolution whose result is new.
class AtenConvolution : public Plan {
 public:
  using Function = std::function<Tensor(const Bindings&)>;

  AtenConvolution(const ConvolutionProblem& p, const Algorithm& algorithm, Notes notes,
                  Function function)
      : Plan(algorithm, notes, std::nullopt), p_(p), function_(std::move(function)) {}

  void run(Bindings& b) override {
    Role role = result_role(p_.pass);
    Tensor result = function_(b);
    Tensor& out = b[role];
    if (out.defined() && b.beta != 0) {
      if (result.scalar_type() != out.scalar_type()) {
        out.copy_(out.to(result.scalar_type()).mul_(b.beta).add_(result, b.alpha));
        return;
      }
      if (b.beta != 1) out.mul_(b.beta);
      out.add_(result, b.alpha);
      return;
    }
    if (b.alpha != 1) result.mul_(b.alpha);
    result = in_dtype(result, p_.result().dtype);
    add_z_and_activate(p_, result, b);
    give(b, role, p_.result(), result);
  }

 private:
  const ConvolutionProblem p_;
  const Function function_;
};

constexpr const char* kMatmul = "matmul";
constexpr const char* kFolded = "folded";
constexpr const char* kTurned = "turned";
constexpr const char* kIm2col = "im2col";

// The product as PyTorch's switch makes it at this moment. If it is TF32 its name says so, so that
// a measurement under one setting of the switch is not taken for one under the other.
Algorithm product_algorithm(const char* name, const ConvolutionProblem& p, const Device& device) {
  Algorithm algorithm{"aten", name, {}};
  bool tf32 = uses_tf32(at::Float32Op::MATMUL, p.x.dtype, device);
  return tf32 ? algorithm.with("math", "tf32") : algorithm;
}

// For convolutions and products alike.
std::optional<Unsupported> why_compute_is_unsupported(const ConvolutionProblem& p) {
  if (p.compute == compute_dtype(p.x.dtype)) return std::nullopt;
  return Unsupported{c10::str("aten computes ", dtype_text(p.x.dtype), " data in f32, not ",
                              dtype_text(p.compute))};
}

// PyTorch's own convolution, whose kernel cuDNN chooses on a GPU.
std::optional<Unsupported> why_convolution_is_unsupported(const ConvolutionProblem& p,
                                                          const Algorithm& algorithm,
                                                          const Device& device) {
  if (auto reason = why_compute_is_unsupported(p)) return reason;
  return unsupported_by_erratum(p, algorithm, {}, device);
}

// What is scaled after PyTorch's kernel.
std::optional<Unsupported> why_scaling_is_unsupported(const ConvolutionProblem& p) {
  if (!is_scaled_in_f16(p)) return std::nullopt;
  return Unsupported{
      "PyTorch's convolution is rounded to f16 before alpha scales it, so that it may overflow"};
}

std::optional<Unsupported> why_rewriting_is_unsupported(const ConvolutionProblem& p,
                                                        const Algorithm& algorithm,
                                                        const Device& device) {
  if (auto reason = why_convolution_is_unsupported(p, algorithm, device)) return reason;
  return why_scaling_is_unsupported(p);
}

// What PyTorch's switches make of its convolution in this pass.
Notes convolution_notes_of(ConvolutionPass pass, const ConvolutionProblem& p,
                           const Device& device) {
  Notes notes;
  if (!device.is_cuda()) return notes;
  if (uses_tf32(at::Float32Op::CONV, p.x.dtype, device)) notes.add(Note::tf32);
  const at::Context& context = at::globalContext();
  bool deterministic = context.deterministicCuDNN() || context.deterministicAlgorithms();
  if (!deterministic && pass != ConvolutionPass::fwd) notes.add(Note::nondeterministic);
  return notes;
}

BuildResult build_default(const ConvolutionProblem& p, const Algorithm& algorithm,
                          const Device& device) {
  if (auto reason = why_unsupported(algorithm, device)) return *reason;
  if (auto reason = why_convolution_is_unsupported(p, algorithm, device)) return *reason;
  // In f32 PyTorch's kernels on the CPU have errata of their own.
  if (auto reason = why_scaling_is_unsupported(p); reason && !device.is_cuda()) return *reason;
  return std::make_shared<AtenConvolution>(p, algorithm, convolution_notes_of(p.pass, p, device),
                                           [p](const Bindings& b) { return convolve(p, b); });
}

BuildResult build_folded(const ConvolutionProblem& p, const Algorithm& algorithm,
                         const Device& device) {
  if (auto reason = why_rewriting_is_unsupported(p, algorithm, device)) return *reason;
  if (!FoldedChannels::takes(p)) {
    return Unsupported{
        "folds forwards and filter gradients of 1 to 4 channels and a channels-last y, over 2 or 3 "
        "dimensions, with windows wider than a pixel and not dilated there, one group, "
        "cross-correlating, of f32 and narrower"};
  }
  if (device.is_target()) return needs_device();
  return std::make_shared<AtenConvolution>(p, algorithm, convolution_notes_of(p.pass, p, device),
                                           FoldedChannels(p));
}

Algorithm turned_algorithm(int64_t block) {
  return Algorithm{"aten", kTurned, {}}.with("block", std::to_string(block));
}

BuildResult build_turned(const ConvolutionProblem& p, const Algorithm& algorithm,
                         const Device& device) {
  if (auto reason = why_rewriting_is_unsupported(p, algorithm, device)) return *reason;
  for (int64_t block : TransposedAsForward::blocks(p)) {
    if (!(algorithm == turned_algorithm(block))) continue;
    if (device.is_target()) return needs_device();
    Notes notes = convolution_notes_of(ConvolutionPass::fwd, p, device);
    return std::make_shared<AtenConvolution>(p, algorithm, notes, TransposedAsForward(p, block));
  }
  return Unsupported{
      "turns data gradients, not dilated, by blocks whose side is a multiple of each stride, with "
      "at most 64 channels of a group in a block except for side 1; the side is 2 or more and at "
      "most 4 times the least stride for one group, the largest stride for several"};
}

// A matrix product of another math type than PyTorch's switch makes of it at this moment.
std::optional<Unsupported> why_switch_is_unsupported(const ConvolutionProblem& p,
                                                     const Algorithm& algorithm,
                                                     const Device& device) {
  Algorithm offered = product_algorithm(algorithm.name.c_str(), p, device);
  if (algorithm == offered) return std::nullopt;
  Algorithm other{"aten", algorithm.name, {}};
  bool known = algorithm == other || algorithm == other.with("math", "tf32");
  if (!known) return Unsupported{c10::str("aten has no ", algorithm.text())};
  return Unsupported{c10::str("PyTorch's switch for matrix products makes it ", offered.text())};
}

Notes notes_of_product(const Algorithm& algorithm) {
  return algorithm.options.empty() ? Notes{} : Notes{Note::tf32};
}

BuildResult build_matmul(const ConvolutionProblem& p, const Algorithm& algorithm,
                         const Device& device) {
  if (auto reason = why_compute_is_unsupported(p)) return *reason;
  std::optional<Matrices> matrices = matrices_of(p);
  if (!matrices) {
    return Unsupported{
        "a matrix product cross-correlates with windows that do not overlap (of one pixel, or "
        "no larger than the stride), no padding, one group, packed w, and x and y in one packed "
        "layout"};
  }
  if (auto reason = why_switch_is_unsupported(p, algorithm, device)) return *reason;
  bool sums = *matrices == Matrices::planes && p.pass == ConvolutionPass::bwd_filter;
  if (auto reason = sums ? why_scaling_is_unsupported(p) : std::nullopt) return *reason;
  if (device.is_target()) return needs_device();
  Notes notes = notes_of_product(algorithm);
  bool halves = c10::isReducedFloatingType(p.x.dtype) && p.x.sizes[0] > 1;
  if (sums && halves) notes.add(Note::down_convert);
  return make_matmul_convolution(p, algorithm, notes, *matrices);
}

BuildResult build_im2col(const ConvolutionProblem& p, const Algorithm& algorithm,
                         const Device& device) {
  if (auto reason = why_compute_is_unsupported(p)) return *reason;
  if (matrices_of(p) || !Im2col::takes(p)) {
    return Unsupported{
        "im2col takes forwards and filter gradients in f32 and f64, of one group, that aten:matmul "
        "does not take, with copies of at most 1 GiB"};
  }
  if (auto reason = why_switch_is_unsupported(p, algorithm, device)) return *reason;
  if (device.is_target()) return needs_device();
  return std::make_shared<AtenConvolution>(p, algorithm, notes_of_product(algorithm), Im2col(p));
}

std::vector<Candidate> all(const ConvolutionProblem& p, const Device& device) {
  std::vector<Candidate> list = candidates(p, device);
  list.push_back({product_algorithm(kMatmul, p, device), "PyTorch"});
  if (p.pass != ConvolutionPass::bwd_data) {
    list.push_back({product_algorithm(kIm2col, p, device), "PyTorch"});
    list.push_back({{"aten", kFolded, {}}, "PyTorch"});
  }
  for (int64_t block : TransposedAsForward::blocks(p))
    list.push_back({turned_algorithm(block), "PyTorch"});
  return list;
}

BuildResult build_convolution_plan(const ConvolutionProblem& p, const Algorithm& algorithm,
                                   const Device& device) {
  if (algorithm.name == kMatmul) return build_matmul(p, algorithm, device);
  if (algorithm.name == kIm2col) return build_im2col(p, algorithm, device);
  if (algorithm.name == kTurned) return build_turned(p, algorithm, device);
  bool folded = algorithm.name == kFolded && algorithm.options.empty();
  return folded ? build_folded(p, algorithm, device) : build_default(p, algorithm, device);
}

const RegisterBackendOperator<ConvolutionProblem> convolution_registered("aten", all,
                                                                         build_convolution_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
