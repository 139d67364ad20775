// Local response and divisive normalisation: argument checks, Problem, gradients, and what the core
// must know of them. The two public operators call one.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <cmath>

#include "core/select/execute.h"
#include "core/tensors.h"
#include "ops/autograd.h"

namespace torch_cudnn_ext {

double LrnProblem::elements() const {
  return std::pow(static_cast<double>(size), end_dim() - first_dim());
}

void LrnProblem::validate() const {
  bool divisive = kind == LrnKind::divisive;
  check_sizes("lrn", "x", x, divisive ? 4 : 3, divisive ? 5 : 3);
  TORCH_CHECK_VALUE(x.strides == contiguous_strides(x.sizes),
                    "lrn: x has other strides than its sizes say, wanted :nchw");
  TORCH_CHECK_VALUE(size >= 1, "lrn: size is ", size, ", wanted at least 1");
  TORCH_CHECK_VALUE(!means || divisive, "lrn: means is true for kind=cross_channel, wanted false");
  check_alignment("lrn", alignment, x.dtype);
}

namespace lrn {
namespace {

LrnWindow window_of(std::string_view text) {
  return lrn_window_from_text("torch_cudnn_ext::local_response_norm: window", text);
}

// What is asked for; all but the tensors.
struct Form {
  std::string kind;
  int64_t size = 0;
  double alpha = 0, beta = 0, k = 0;
  std::string window;

  template <class F>
  void attributes(F&& visit) {
    visit(kind);
    visit(size);
    visit(alpha);
    visit(beta);
    visit(k);
    visit(window);
  }
};

LrnProblem make_problem(Pass pass, const Form& form, const Tensor& x, bool means) {
  LrnProblem p;
  p.pass = pass;
  p.x.dtype = x.scalar_type();
  p.kind = lrn_kind_from_text("lrn: kind", form.kind);
  p.window = window_of(form.window);
  p.size = form.size;
  p.alpha = form.alpha;
  p.beta = form.beta;
  p.k = form.k;
  p.means = means;
  return p;
}

// --- the formula

// Means over the window of each element, the window being full of zeros outside.
Tensor window_means(const Tensor& t, const LrnProblem& p) {
  if (t.sym_numel() == 0) return t;
  bool divisive = p.kind == LrnKind::divisive;
  Tensor out = t;
  for (int64_t dim = p.first_dim(); dim < (divisive ? t.dim() : 2); ++dim) {
    std::vector<int64_t> padding(2 * (t.dim() - dim), 0);
    padding[padding.size() - 2] = p.behind();
    padding[padding.size() - 1] = p.ahead();
    out = at::constant_pad_nd(out, padding).unfold(dim, p.size, 1).mean(-1);
  }
  return out;
}

Tensor formula(const Tensor& x, const Tensor& means, const LrnProblem& p) {
  Tensor centred = means.defined() ? x - means : x;
  return x * (window_means(centred.square(), p) * p.alpha + p.k).pow(-p.beta);
}

// dx, and dmeans where there are means, of the formula at these values.
variable_list gradients(const Tensor& dy, const Tensor& x, const Tensor& means,
                        const LrnProblem& p) {
  auto compute = compute_dtype(x.scalar_type());
  auto of = [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
    return {formula(in[0], in[1], p)};
  };
  std::vector<Tensor> inputs{x.to(compute), means.defined() ? means.to(compute) : means};
  return gradients_of_formula(of, inputs, {dy.to(compute)}, {true, means.defined()});
}

// --- the kernels

using Tensors2 = std::tuple<Tensor, Tensor>;

// Dense, and across channels with all of space as one dimension.
Tensor as_problems(const Form& form, const Tensor& t) {
  Tensor dense = t.contiguous();
  if (form.kind == "divisive") return dense;
  int64_t n = t.size(0), channels = t.size(1), space = t.numel() / (n * channels);
  return strided_view(dense, {n, channels, space}, {channels * space, space, 1});
}
Tensor with_sizes_of(const Tensor& like, const Tensor& result) {
  return strided_view(result, like.sizes(), contiguous_strides(like.sizes()));
}

Tensor forward(const Tensor& input, const OptionalTensor& means, const Form& form,
               OptionalPolicy policy) {
  c10::OptionalDeviceGuard guard(input.device());
  if (input.numel() == 0) return at::empty(input.sizes(), input.options());
  Tensor x = as_problems(form, input), m = contiguous_or_undefined(means);
  LrnProblem p = make_problem(Pass::fwd, form, x, m.defined());
  p.x = spec_of(x);
  p.canonicalise();
  p.alignment = alignment_of({&x, &m});
  Bindings bindings;
  bindings[Role::x] = x;
  bindings[Role::z] = m;
  execute(p, resolve_policy(LrnProblem::kFamily, policy), device_of(x.device()), bindings);
  return with_sizes_of(input, bindings[Role::y]);
}

Tensor run(const Tensor& input, const OptionalTensor& means, std::string_view kind, int64_t size,
           double alpha, double beta, double k, std::string_view window, OptionalPolicy policy) {
  Form form{std::string(kind), size, alpha, beta, k, std::string(window)};
  return forward(input, means, form, policy);
}

Tensor run_meta(const Tensor& input, const OptionalTensor&, std::string_view, int64_t, double,
                double, double, std::string_view, OptionalPolicy) {
  return at::empty_symint(input.sym_sizes(), input.options());
}

// dx, and dmeans, which is empty where there are no means.
Tensors2 backward(const Tensor& grad_output, const Tensor& input, const Tensor& output,
                  const OptionalTensor& means, std::string_view kind, int64_t size, double alpha,
                  double beta, double k, std::string_view window, OptionalPolicy policy) {
  check_same("_lrn_backward", "grad_output", grad_output, "input", input);
  check_same("_lrn_backward", "output", output, "input", input);
  c10::OptionalDeviceGuard guard(input.device());
  Tensor m = contiguous_or_undefined(means);
  Bindings bindings;
  if (input.numel() == 0) {
    bindings[Role::dx] = at::empty(input.sizes(), input.options());
    bindings[Role::dz] = at::empty(input.sizes(), input.options());
  } else {
    Form form{std::string(kind), size, alpha, beta, k, std::string(window)};
    Tensor x = as_problems(form, input), dy = as_problems(form, grad_output),
           y = as_problems(form, output);
    LrnProblem p = make_problem(Pass::bwd, form, x, m.defined());
    p.x = spec_of(x);
    p.canonicalise();
    p.alignment = alignment_of({&x, &dy, &y, &m});
    bindings[Role::x] = x;
    bindings[Role::y] = y;
    bindings[Role::dy] = dy;
    bindings[Role::z] = m;
    execute(p, resolve_policy(LrnProblem::kFamily, policy), device_of(x.device()), bindings);
  }
  return {with_sizes_of(input, bindings[Role::dx]),
          m.defined() ? bindings[Role::dz] : at::empty({0}, input.options())};
}

Tensors2 backward_meta(const Tensor& grad_output, const Tensor& input, const Tensor&,
                       const OptionalTensor& means, std::string_view, int64_t, double, double,
                       double, std::string_view, OptionalPolicy) {
  check_same("_lrn_backward", "grad_output", grad_output, "input", input);
  Tensor dx = at::empty_symint(input.sym_sizes(), input.options());
  return {dx, or_undefined(means).defined() ? at::empty_like(dx) : at::empty({0}, dx.options())};
}

// --- gradients

const auto& run_op() {
  static auto op = find_op<decltype(run)>("torch_cudnn_ext::_lrn");
  return op;
}
const auto& backward_op() {
  static auto op = find_op<decltype(backward)>("torch_cudnn_ext::_lrn_backward");
  return op;
}

struct LrnGradient {
  static constexpr const char* kName = "TorchCudnnExtLrnBackward";
  static constexpr size_t kInputs = 2;  // input, means
  Form form;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    form.attributes(visit);
    visit(policy);
  }
  // Saved: input, means, output.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto [dx, dmeans] =
        backward_op().call(grads[0], saved[0], saved[2], optional_of(saved[1]), form.kind,
                           form.size, form.alpha, form.beta, form.k, form.window, policy);
    // In the layout of its gradient, as PyTorch's.
    if (needed[0] && !is_transformed(dx)) dx = dx.contiguous(grads[0].suggest_memory_format());
    return {needed[0] ? dx : Tensor(), needed[1] ? dmeans : Tensor()};
  }
  // The output, which PyTorch's own gradient does not read.
  Tensor remade(TensorList before) const {
    return run_op().call(before[0].detach(), optional_of(before[1]), form.kind, form.size,
                         form.alpha, form.beta, form.k, form.window, policy);
  }
};

Tensor run_autograd(c10::DispatchKeySet keys, const Tensor& input, const OptionalTensor& means,
                    std::string_view kind, int64_t size, double alpha, double beta, double k,
                    std::string_view window, OptionalPolicy policy) {
  const Tensor& m = or_undefined(means);
  return run_with_gradient<LrnGradient>(
      {input, m}, 1,
      [&] {
        return run_op().redispatch(keys & c10::after_autograd_keyset, input, means, kind, size,
                                   alpha, beta, k, window, policy);
      },
      [&](auto& node, const auto& results) {
        node.gradient.form = {std::string(kind), size, alpha, beta, k, std::string(window)};
        node.gradient.policy = policy_to_save(LrnProblem::kFamily, policy);
        save_input(node, input);
        save_input(node, m);
        save_result(node, results[0]);
      });
}

// The output is a function of the input, and enters as such.
struct LrnBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtLrnBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, means
  Form form;

  template <class F>
  void attributes(F&& visit) {
    form.attributes(visit);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto of = [&](const std::vector<Tensor>& in) {
      auto p = make_problem(Pass::bwd, form, in[1], in[2].defined());
      p.canonicalise();
      variable_list results = gradients(in[0], in[1], in[2], p);
      if (!in[2].defined()) results.pop_back();  // of grads, an empty one is left over
      return results;
    };
    return gradients_of_formula(of, saved, grads, needed);
  }
};

Tensors2 backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output, const Tensor& input,
                           const Tensor& output, const OptionalTensor& means, std::string_view kind,
                           int64_t size, double alpha, double beta, double k,
                           std::string_view window, OptionalPolicy policy) {
  const Tensor& m = or_undefined(means);
  return run_with_gradient<LrnBackwardGradient>(
      {grad_output, input, m}, m.defined() ? 2 : 1,
      [&] {
        return backward_op().redispatch(keys & c10::after_autograd_keyset, grad_output, input,
                                        output, means, kind, size, alpha, beta, k, window, policy);
      },
      [&](auto& node, const auto&) {
        node.gradient.form = {std::string(kind), size, alpha, beta, k, std::string(window)};
        save_input(node, grad_output);
        save_input(node, input);
        save_input(node, m);
      });
}

// --- the public operators: calls of the one above

Tensor local_response_norm(const Tensor& input, int64_t size, double alpha, double beta, double k,
                           std::string_view window, OptionalPolicy policy) {
  constexpr const char* kOp = "local_response_norm";
  check_dtype(kOp, "input", input);
  TORCH_CHECK_VALUE(input.dim() >= 3, "torch_cudnn_ext::", kOp, ": input has sizes ",
                    input.sym_sizes(), ", wanted at least 3 dimensions (batch, channels, ...)");
  TORCH_CHECK_VALUE(size >= 1, "torch_cudnn_ext::", kOp, ": size is ", size, ", wanted at least 1");
  window_of(window);
  Tensor y =
      run_op().call(input, std::nullopt, "cross_channel", size, alpha, beta, k, window, policy);
  return y.contiguous(format_of(input));
}

Tensor divisive_norm(const Tensor& input, int64_t size, double alpha, double beta, double k,
                     const OptionalTensor& means, OptionalPolicy policy) {
  constexpr const char* kOp = "divisive_norm";
  check_dtype(kOp, "input", input);
  TORCH_CHECK_VALUE(input.dim() == 4 || input.dim() == 5, "torch_cudnn_ext::", kOp,
                    ": input has sizes ", input.sym_sizes(),
                    ", wanted 4 or 5 dimensions (batch, channels, height, width)");
  TORCH_CHECK_VALUE(size >= 1, "torch_cudnn_ext::", kOp, ": size is ", size, ", wanted at least 1");
  if (means) check_same(kOp, "means", *means, "input", input);
  Tensor y = run_op().call(input, means, "divisive", size, alpha, beta, k, "cudnn", policy);
  return y.contiguous(format_of(input));
}

// PyTorch's is made of operators of which autocast runs one in float32: on CUDA the power, on the
// CPU the average, which over a volume alone is among these.
template <c10::DeviceType device>
Tensor local_response_norm_autocast(const Tensor& input, int64_t size, double alpha, double beta,
                                    double k, std::string_view window, OptionalPolicy policy) {
  c10::impl::ExcludeDispatchKeyGuard below(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  bool wide = device == c10::kCUDA || input.dim() > 3;
  Tensor x = wide ? at::autocast::cached_cast(at::kFloat, input, device) : input;
  return local_response_norm(x, size, alpha, beta, k, window, policy);
}

// --- what the core must know

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

  // One for each kind.
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

  // A gradient is taken with the output that a forward would have given.
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

  // Squares, their mean, and a power, each in the data's type with PyTorch.
  double tolerance(const LrnProblem& p, const Notes&) const override {
    return 8 * epsilon_of(p.x.dtype) +
           4 * epsilon_of(compute_dtype(p.x.dtype)) * std::sqrt(p.elements());
  }

  // PyTorch has several kernels for what cuDNN does in one.
  std::vector<std::string> heuristic_order(const LrnProblem& p) const override {
    // cuDNN's divisive normalisation took 20 to 400 times as long on an H200. Across channels it
    // has a thread a pixel: with few pixels of many channels it took up to 20 times as long on an
    // H100. Of 1422 such problems the first of this order took 1.02 times what the faster one took
    // (geometric mean).
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

void register_kernels(torch::Library& m) {
  m.impl("_lrn", TORCH_FN(run));
  m.impl("_lrn_backward", TORCH_FN(backward));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("_lrn", TORCH_FN(run_meta));
  m.impl("_lrn_backward", TORCH_FN(backward_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("_lrn", TORCH_FN(run_autograd));
  m.impl("_lrn_backward", TORCH_FN(backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  m.impl("local_response_norm", TORCH_FN(local_response_norm));
  m.impl("divisive_norm", TORCH_FN(divisive_norm));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  m.impl("local_response_norm", TORCH_FN(local_response_norm_autocast<c10::kCPU>));
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("local_response_norm", TORCH_FN(local_response_norm_autocast<c10::kCUDA>));
}

}  // namespace lrn
}  // namespace torch_cudnn_ext
