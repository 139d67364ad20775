// What the core must know of local response and divisive normalisation.
#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <cmath>

#include "ops/autograd.h"
#include "ops/lrn/lrn.h"

namespace torch_cudnn_ext::lrn {
namespace {

// The mean over each element's window, which holds zeros outside of the tensor.
Tensor window_means(const Tensor& t, const LrnProblem& p) {
  if (t.sym_numel() == 0) return t;
  Tensor out = t;
  int64_t end = p.kind == LrnKind::divisive ? t.dim() : 2;
  for (int64_t dim = p.first_dim(); dim < end; ++dim) {
    std::vector<int64_t> padding(2 * (t.dim() - dim), 0);
    padding[padding.size() - 2] = p.before();
    padding[padding.size() - 1] = p.after();
    out = at::constant_pad_nd(out, padding).unfold(dim, p.size, 1).mean(-1);
  }
  return out;
}

// y; `means` may be undefined.
Tensor formula(const Tensor& x, const Tensor& means, const LrnProblem& p) {
  Tensor centred = means.defined() ? x - means : x;
  return x * (window_means(centred.square(), p) * p.alpha + p.k).pow(-p.beta);
}

}  // namespace

variable_list gradients(const Tensor& dy, const Tensor& x, const Tensor& means,
                        const LrnProblem& p) {
  auto compute = compute_dtype(x.scalar_type());
  auto of = [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
    return {formula(in[0], in[1], p)};
  };
  std::vector<Tensor> inputs{x.to(compute), means.defined() ? means.to(compute) : means};
  return gradients_of_formula(of, inputs, {dy.to(compute)}, {true, means.defined()});
}

namespace {

class LrnOperator : public OperatorOf<LrnProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnLRNCrossChannelForward, cudnnLRNCrossChannelBackward, "
        "cudnnDivisiveNormalizationForward, cudnnDivisiveNormalizationBackward",
        "contiguous",
        "cuDNN: windows of 1 to 16, k from 1e-5, beta from 0.01; bf16 in copies of float32; even "
        "windows of LRN with window=cudnn",
        {"lrn_fwd x=f32[32,64,3025]:nchw kind=cross_channel size=5",
         "lrn_fwd x=f32[32,64,55,55]:nchw kind=divisive size=5"}};
  }

  // There is one for each kind.
  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{0, "CUDNN_LRN_CROSS_CHANNEL_DIM1", "cross_channel", nullptr},
            {0, "CUDNN_DIVNORM_PRECOMPUTED_MEANS", "precomputed_means", nullptr}};
  }

  // The means have the roles z and dz.
  std::vector<SlotSpec> slots(const LrnProblem& p) const override {
    bool forward = p.pass == Pass::fwd;
    std::vector<SlotSpec> slots{{Role::x, p.x, false}, {Role::y, p.x, forward}};
    if (p.means) slots.push_back({Role::z, p.x, false});
    if (forward) return slots;
    slots.push_back({Role::dy, p.x, false});
    slots.push_back({Role::dx, p.x, true});
    if (p.means) slots.push_back({Role::dz, p.x, true});
    return slots;
  }

  Cost cost(const LrnProblem& p) const override {
    auto elements = static_cast<double>(p.x.numel());
    double bytes = bytes_of(slots(p));
    // Squares, their sums by running windows, scale, power, product; twice that for a gradient.
    return {(p.pass == Pass::fwd ? 6 : 12) * elements, bytes, p.elements()};
  }

  // A gradient is taken with the output that the forward computes.
  void prepare_scratch(const LrnProblem& p, Bindings& bindings) const override {
    if (p.pass == Pass::bwd) bindings[Role::y].copy_(output_in_double(p, bindings));
  }

  Bindings reference(const LrnProblem& p, const Bindings& bindings) const override {
    Bindings out;
    if (p.pass == Pass::fwd) {
      out[Role::y] = output_in_double(p, bindings);
      return out;
    }
    at::NoGradGuard no_grad;
    auto found = gradients(bindings[Role::dy].to(at::kDouble), bindings[Role::x].to(at::kDouble),
                           means_in_double(p, bindings), p);
    out[Role::dx] = found[0];
    if (p.means) out[Role::dz] = found[1];
    return out;
  }

  // Squares, their mean and a power, each of which PyTorch rounds to the data's type.
  double tolerance(const LrnProblem& p, const Notes&) const override {
    return 8 * epsilon_of(p.x.dtype) +
           4 * epsilon_of(compute_dtype(p.x.dtype)) * std::sqrt(p.elements());
  }

  // PyTorch needs several kernels for what cuDNN does in one. But cuDNN's divisive normalisation
  // took 20 to 400 times as long on an H200. Across channels cuDNN has a thread a pixel; with few
  // pixels of many channels it took up to 20 times as long on an H100. Over 1422 such problems the
  // first of this order took 1.02 times what the faster one took (geometric mean).
  std::vector<std::string> heuristic_order(const LrnProblem& p) const override {
    bool divisive = p.kind == LrnKind::divisive;
    int64_t channels = p.x.sizes[1];
    int64_t pixels = p.x.sizes[0] * c10::multiply_integers(p.x.sizes.begin() + 2, p.x.sizes.end());
    if (divisive || (channels > 64 && pixels < 32 * channels)) return {"aten", "legacy"};
    return {"legacy", "aten"};
  }

 private:
  static Tensor means_in_double(const LrnProblem& p, const Bindings& bindings) {
    return p.means ? bindings[Role::z].to(at::kDouble) : Tensor();
  }
  static Tensor output_in_double(const LrnProblem& p, const Bindings& bindings) {
    return formula(bindings[Role::x].to(at::kDouble), means_in_double(p, bindings), p);
  }
};

const RegisterOperator<LrnOperator> registered;

}  // namespace
}  // namespace torch_cudnn_ext::lrn
