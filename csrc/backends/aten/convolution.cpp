// PyTorch's own convolution: the baseline of every table, and the last resort. It reads PyTorch's
// global switches, which are never flipped here; what they imply is in the plan's notes.
#include <ATen/Context.h>

#include "backends/aten/plan.h"

namespace torch_cudnn_ext::aten {
namespace {

Dims spatial_axes(const ConvolutionProblem& p) {
  Dims axes;
  for (int i = 2; i < p.w.sizes.size(); ++i) axes.push_back(i);
  return axes;
}

class AtenConvolution : public Plan {
 public:
  AtenConvolution(const ConvolutionProblem& p, const Algorithm& algorithm, Notes notes)
      : Plan(algorithm, notes, std::nullopt), p_(p), none_(p.spatial_dims(), 0) {}

  void run(Bindings& b) override {
    Role role = result_role(p_.pass);
    Tensor result = compute(b);
    if (b.alpha != 1) result.mul_(b.alpha);
    Tensor& out = b[role];
    if (out.defined()) {
      b.beta == 0 ? out.copy_(result) : out.mul_(b.beta).add_(result);
      return;
    }
    give(b, role, role == Role::y ? p_.y : role == Role::x ? p_.x : p_.w, result);
  }

 private:
  Tensor weight(const Bindings& b) const {
    return p_.mode == ConvolutionMode::conv ? b[Role::w].flip(spatial_axes(p_)) : b[Role::w];
  }

  Tensor compute(const Bindings& b) const {
    if (p_.pass == ConvolutionPass::fwd) {
      return at::convolution(b[Role::x], weight(b), b[Role::bias], p_.stride, p_.padding,
                             p_.dilation, false, none_, p_.groups);
    }
    // PyTorch asks for the tensor whose gradient is wanted, of which it reads sizes and layout
    // only.
    bool data = p_.pass == ConvolutionPass::bwd_data;
    const Tensor& dy = b[Role::y];
    Tensor x = data ? at::empty_strided(p_.x.sizes, p_.x.strides, dy.options()) : b[Role::x];
    Tensor w = data ? weight(b) : at::empty_strided(p_.w.sizes, p_.w.strides, dy.options());
    auto gradients =
        at::convolution_backward(dy, x, w, c10::nullopt, p_.stride, p_.padding, p_.dilation, false,
                                 none_, p_.groups, {data, !data, false});
    if (data) return std::get<0>(gradients);
    Tensor dw = std::get<1>(gradients);
    return p_.mode == ConvolutionMode::conv ? dw.flip(spatial_axes(p_)) : dw;
  }

  const ConvolutionProblem p_;
  const Dims none_;
};

BuildResult build_plan(const ConvolutionProblem& p, const Algorithm& algorithm,
                       const Device& device) {
  if (auto refused = refuse(algorithm, device)) return *refused;
  if (p.z || p.activation != Activation::none) {
    return Unsupported{"aten has no fused convolution but with a bias"};
  }
  bool usual = p.compute == compute_dtype(p.x.dtype);
  if (!usual) {
    return Unsupported{c10::str("aten computes ", dtype_text(p.x.dtype), " data in f32, not ",
                                dtype_text(p.compute))};
  }
  Notes notes;
  const at::Context& context = at::globalContext();
  if (device.is_cuda()) {
    bool tf32 = context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV) ==
                at::Float32Precision::TF32;
    if (p.x.dtype == at::kFloat && tf32) notes.add(Note::tf32);
    bool deterministic = context.deterministicCuDNN() || context.deterministicAlgorithms();
    if (!deterministic && p.pass != ConvolutionPass::fwd) notes.add(Note::nondeterministic);
  }
  return std::make_shared<AtenConvolution>(p, algorithm, notes);
}

const RegisterBackendOperator<ConvolutionProblem> registered("aten", candidates<ConvolutionProblem>,
                                                             build_plan);

}  // namespace
}  // namespace torch_cudnn_ext::aten
