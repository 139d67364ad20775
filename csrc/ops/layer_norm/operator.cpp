// Layer, RMS, instance and group norm: argument checks, Problem, gradients, and what the core must
// know of them. The four public operators are views of one that takes [rows, n] or [batch,
// channels, space].
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "core/base/enum_text.h"
#include "core/select/execute.h"
#include "ops/autograd.h"
#include "torch/overrides.h"

namespace torch_cudnn_ext {

LayerNormProblem::View LayerNormProblem::view() const {
  if (x.sizes.size() == 2) return {x.sizes[0], 1, x.sizes[1], 1};
  bool instance = kind == LayerNormKind::instance;
  return {x.sizes[0], instance ? x.sizes[1] : groups, x.sizes[1], x.sizes[2]};
}

namespace {

// PyTorch keeps those of group norm in the parameters' type, which its gradient wants them in.
at::ScalarType statistics_dtype(LayerNormKind kind, at::ScalarType x,
                                std::optional<at::ScalarType> w) {
  return kind == LayerNormKind::group ? w.value_or(x) : compute_dtype(x);
}

}  // namespace

TensorSpec LayerNormProblem::statistics() const {
  return {statistics_dtype(kind, x.dtype, w), {view().count()}, {1}};
}

void LayerNormProblem::validate() const {
  bool of_rows = kind == LayerNormKind::layer || kind == LayerNormKind::rms;
  int dims = of_rows ? 2 : 3;
  check_sizes("layer_norm", "x", x, dims, dims);
  bool nhwc = kind == LayerNormKind::instance && x.strides == channels_last_strides(x.sizes);
  TORCH_CHECK_VALUE(nhwc || x.strides == contiguous_strides(x.sizes),
                    "layer_norm: x has other strides than its sizes say, wanted :nchw, or :nhwc "
                    "for kind=instance");
  bool divides =
      groups >= 1 && (groups == 1 || kind == LayerNormKind::group) && x.sizes[1] % groups == 0;
  TORCH_CHECK_VALUE(divides, "layer_norm: groups is ", groups,
                    ", wanted a divisor of the channels for kind=group, 1 for others");
  for (const auto& [name, dtype] : {std::make_pair("w", w), std::make_pair("bias", bias)}) {
    bool fits = !dtype || *dtype == x.dtype || (*dtype == at::kFloat && x.dtype != at::kDouble);
    TORCH_CHECK_VALUE(fits, "layer_norm: ", name, " is ", dtype_text(*dtype), ", wanted ",
                      dtype_text(x.dtype), " as x, or f32 with f16 and bf16");
  }
  TORCH_CHECK_VALUE(!w || !bias || *w == *bias, "layer_norm: w and bias have different dtypes");
  TORCH_CHECK_VALUE(!bias || has_mean(), "layer_norm: kind=rms has no bias");
  TORCH_CHECK_VALUE(stats || pass == Pass::fwd, "layer_norm: a backward has stats");
  check_alignment("layer_norm", alignment, x.dtype);
}

namespace layer_norm {
namespace {

constexpr EnumName<LayerNormKind> kOperators[] = {{LayerNormKind::layer, "layer_norm"},
                                                  {LayerNormKind::rms, "rms_norm"},
                                                  {LayerNormKind::instance, "instance_norm"},
                                                  {LayerNormKind::group, "group_norm"}};

LayerNormKind kind_of(std::string_view text) {
  return layer_norm_kind_from_text("norm: kind", text);
}

using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;

void check_parameter(const char* op, const char* name, const OptionalTensor& t,
                     const Tensor& input) {
  if (!t) return;
  bool of_channels = t->dim() == 1 && t->sym_size(0) == input.sym_size(1);
  TORCH_CHECK_VALUE(of_channels, "torch_cudnn_ext::", op, ": ", name, " has ", t->sym_numel(),
                    " elements in ", t->dim(), " dimensions, wanted ", input.sym_size(1),
                    " in one");
  auto dtype = t->scalar_type();
  bool narrow = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
  TORCH_CHECK_VALUE(dtype == input.scalar_type() || (narrow && dtype == at::kFloat),
                    "torch_cudnn_ext::", op, ": ", name, " is ", dtype, ", wanted input's dtype ",
                    input.scalar_type(), narrow ? " or Float" : "");
  check_device(op, name, *t, "input", input);
}

void check_arguments(LayerNormKind kind, const Tensor& input, const OptionalTensor& weight,
                     const OptionalTensor& bias) {
  const char* op = enum_text(kOperators, kind);
  check_dtype(op, "input", input);
  check_parameter(op, "weight", weight, input);
  check_parameter(op, "bias", bias, input);
  TORCH_CHECK_VALUE(!weight || !bias || weight->scalar_type() == bias->scalar_type(),
                    "torch_cudnn_ext::", op, ": bias is ", bias->scalar_type(),
                    ", wanted weight's dtype ", weight->scalar_type());
  TORCH_CHECK_VALUE(weight || !bias || bias->scalar_type() == input.scalar_type(),
                    "torch_cudnn_ext::", op, ": bias is ", bias->scalar_type(),
                    ", wanted input's dtype ", input.scalar_type(), " where there is no weight");
}

// --- the formulas

// What is normalised together is one group of [batch, groups, channels, space].
struct SymView {
  SymInt batch, groups, channels, space;  // channels of a group
};

SymView view_of(LayerNormKind kind, const Tensor& input, int64_t groups) {
  if (input.dim() == 2) return {input.sym_size(0), 1, input.sym_size(1), 1};
  const SymInt& channels = input.sym_size(1);
  if (kind == LayerNormKind::instance) return {input.sym_size(0), channels, 1, input.sym_size(2)};
  return {input.sym_size(0), groups, channels / groups, input.sym_size(2)};
}

Tensor viewed(const Tensor& t, const SymView& v) {
  return t.reshape_symint({v.batch, v.groups, v.channels, v.space});
}

Tensor parameter_viewed(const Tensor& t, const SymView& v) {
  return t.reshape_symint({1, v.groups, v.channels, 1});
}

constexpr int64_t kTogether[] = {2, 3};    // dimensions of the view that are normalised over
constexpr int64_t kOfChannels[] = {0, 3};  // those that a parameter is shared over

struct Normalised {
  Tensor mean;  // undefined without
  Tensor invstd, x;
};

Normalised normalise(LayerNormKind kind, const Tensor& x, double epsilon) {
  Normalised n;
  Tensor centred = x;
  if (kind != LayerNormKind::rms) {
    n.mean = x.mean(kTogether, true);
    centred = x - n.mean;
  }
  n.invstd = (centred.square().mean(kTogether, true) + epsilon).rsqrt();
  n.x = centred * n.invstd;
  return n;
}

// dx, dw and dbias as functions of dy, x and w (which may be undefined), in ATen operators.
std::vector<Tensor> gradients(LayerNormKind kind, const Tensor& grad_output, const Tensor& input,
                              const Tensor& weight, int64_t groups, double epsilon,
                              at::ScalarType compute) {
  SymView v = view_of(kind, input, groups);
  Tensor dy = viewed(grad_output.to(compute), v);
  Normalised n = normalise(kind, viewed(input.to(compute), v), epsilon);
  Tensor g = weight.defined() ? dy * parameter_viewed(weight.to(compute), v) : dy;
  Tensor dx = g - n.x * (g * n.x).mean(kTogether, true);
  if (kind != LayerNormKind::rms) dx = dx - g.mean(kTogether, true);
  return {(dx * n.invstd).reshape_symint(input.sym_sizes()), (dy * n.x).sum(kOfChannels).flatten(),
          dy.sum(kOfChannels).flatten()};
}

// --- the kernels

// cuDNN normalises instances of nhwc tensors as they are; all else is contiguous.
bool is_nhwc(LayerNormKind kind, const Tensor& t) {
  return kind == LayerNormKind::instance && !t.is_contiguous() && t.transpose(1, 2).is_contiguous();
}

// On the CPU, PyTorch's gradient of group norm has the layout of its input.
bool gives_nhwc_gradient(LayerNormKind kind, const Tensor& input) {
  return kind == LayerNormKind::group &&
         input.key_set().has_backend(c10::BackendComponent::CPUBit) && !input.is_contiguous() &&
         input.transpose(1, 2).is_contiguous();
}

Tensor laid_out(const Tensor& t, bool nhwc) {
  return nhwc ? t.transpose(1, 2).contiguous().transpose(1, 2) : t.contiguous();
}

LayerNormProblem make_problem(Pass pass, LayerNormKind kind, const Tensor& x, int64_t groups,
                              const Tensor& w) {
  LayerNormProblem p;
  p.pass = pass;
  p.kind = kind;
  p.x = spec_of(x);
  p.groups = groups;
  if (w.defined()) p.w = w.scalar_type();
  return p;
}

// A result that there is not.
Tensor nothing(const Tensor& like) { return at::empty({0}, like.options()); }

// y, and with `statistics` the mean (not of rms) and the inverse standard deviation, flat. What
// there is not is undefined.
Tensors3 run_normalize(const Tensor& input, const OptionalTensor& weight,
                       const OptionalTensor& bias, std::string_view kind_text, int64_t groups,
                       double epsilon, bool statistics, OptionalPolicy policy) {
  LayerNormKind kind = kind_of(kind_text);
  check_arguments(kind, input, weight, bias);
  c10::OptionalDeviceGuard guard(input.device());
  Tensor x = laid_out(input, is_nhwc(kind, input));
  Tensor w = contiguous_or_undefined(weight), b = contiguous_or_undefined(bias);
  LayerNormProblem p = make_problem(Pass::fwd, kind, x, groups, w);
  if (b.defined()) p.bias = b.scalar_type();
  p.stats = statistics;
  Bindings bindings;
  if (input.numel() == 0) {
    bindings[Role::y] = at::empty(x.sizes(), x.options());
    TensorSpec spec = p.statistics();
    auto options = x.options().dtype(spec.dtype);
    bindings[Role::mean] = at::zeros(spec.sizes, options);
    bindings[Role::invstd] = at::zeros(spec.sizes, options);
  } else {
    bindings[Role::x] = x;
    bindings[Role::w] = w;
    bindings[Role::bias] = b;
    bindings.epsilon = epsilon;
    p.canonicalise();
    p.alignment = alignment_of({&x, &w, &b});
    execute(p, resolve_policy(LayerNormProblem::kFamily, policy), device_of(x.device()), bindings);
  }
  return {bindings[Role::y].contiguous(),
          statistics && p.has_mean() ? bindings[Role::mean] : Tensor(),
          statistics ? bindings[Role::invstd] : Tensor()};
}

Tensors3 normalize(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                   std::string_view kind, int64_t groups, double epsilon, bool statistics,
                   OptionalPolicy policy) {
  Tensors3 results = run_normalize(input, weight, bias, kind, groups, epsilon, statistics, policy);
  for (Tensor* t : {&std::get<1>(results), &std::get<2>(results)}) {
    if (!t->defined()) *t = nothing(input);
  }
  return results;
}

Tensors3 normalize_meta(const Tensor& input, const OptionalTensor& weight,
                        const OptionalTensor& bias, std::string_view kind_text, int64_t groups,
                        double, bool statistics, OptionalPolicy) {
  LayerNormKind kind = kind_of(kind_text);
  check_arguments(kind, input, weight, bias);
  SymView v = view_of(kind, input, groups);
  auto w = weight ? std::optional(weight->scalar_type()) : std::nullopt;
  auto options = input.options().dtype(statistics_dtype(kind, input.scalar_type(), w));
  auto flat = [&](bool is_there) {
    return is_there ? at::empty_symint({v.batch * v.groups}, options) : nothing(input);
  };
  return {at::empty_symint(input.sym_sizes(), input.options()),
          flat(statistics && kind != LayerNormKind::rms), flat(statistics)};
}

// dx, dw where there is a weight, dbias where asked for.
Tensors3 normalize_backward(const Tensor& grad_output, const Tensor& input,
                            const OptionalTensor& weight, const Tensor& mean, const Tensor& invstd,
                            std::string_view kind_text, int64_t groups, bool has_bias,
                            double epsilon, OptionalPolicy policy) {
  LayerNormKind kind = kind_of(kind_text);
  check_same("normalize_backward", "grad_output", grad_output, "input", input);
  c10::OptionalDeviceGuard guard(input.device());
  bool nhwc = is_nhwc(kind, input);
  Tensor x = laid_out(input, nhwc), dy = laid_out(grad_output, nhwc);
  Tensor w = contiguous_or_undefined(weight);
  TORCH_CHECK_VALUE(!w.defined() || w.numel() == x.size(1),
                    "torch_cudnn_ext::normalize_backward: weight has ", w.numel(),
                    " elements, wanted ", x.size(1));
  LayerNormProblem p = make_problem(Pass::bwd, kind, x, groups, w);
  if (has_bias) p.bias = p.w.value_or(p.x.dtype);
  Bindings bindings;
  if (input.numel() == 0) {
    bindings[Role::dx] = at::empty(x.sizes(), x.options());
    auto options = w.defined() ? w.options() : x.options();
    bindings[Role::dw] = at::zeros({x.size(1)}, options);
    bindings[Role::dbias] = at::zeros({x.size(1)}, options);
  } else {
    bindings[Role::x] = x;
    bindings[Role::dy] = dy;
    bindings[Role::w] = w;
    auto bind = [&](Role role, const char* name, const Tensor& statistic) {
      TORCH_CHECK_VALUE(statistic.numel() == p.view().count(),
                        "torch_cudnn_ext::normalize_backward: ", name, " has ", statistic.numel(),
                        " elements, wanted ", p.view().count());
      bindings[role] = statistic.contiguous();
    };
    if (p.has_mean()) bind(Role::mean, "mean", mean);
    bind(Role::invstd, "invstd", invstd);
    bindings.epsilon = epsilon;
    p.alignment = alignment_of({&x, &dy, &w, &bindings[Role::mean], &bindings[Role::invstd]});
    p.canonicalise();
    execute(p, resolve_policy(LayerNormProblem::kFamily, policy), device_of(x.device()), bindings);
  }
  Tensor dx = bindings[Role::dx].contiguous();
  if (gives_nhwc_gradient(kind, input)) {
    dx = at::empty_strided(dx.sizes(), channels_last_strides(dx.sizes()), dx.options()).copy_(dx);
  }
  return {dx, p.w ? bindings[Role::dw] : nothing(input),
          p.bias ? bindings[Role::dbias] : nothing(input)};
}

Tensors3 normalize_backward_meta(const Tensor& grad_output, const Tensor& input,
                                 const OptionalTensor& weight, const Tensor&, const Tensor&,
                                 std::string_view kind, int64_t, bool has_bias, double,
                                 OptionalPolicy) {
  check_same("normalize_backward", "grad_output", grad_output, "input", input);
  const Tensor& w = or_undefined(weight);
  auto options = w.defined() ? w.options() : input.options();
  auto parameter = [&](bool is_there) {
    return is_there ? at::empty_symint({input.sym_size(1)}, options) : nothing(input);
  };
  Tensor dx =
      gives_nhwc_gradient(kind_of(kind), input)
          ? at::empty_symint(input.transpose(1, 2).sym_sizes(), input.options()).transpose(1, 2)
          : at::empty_symint(input.sym_sizes(), input.options());
  return {dx, parameter(w.defined()), parameter(has_bias)};
}

// --- gradients

const auto& normalize_op() {
  static auto op = find_op<decltype(normalize)>("torch_cudnn_ext::_normalize");
  return op;
}
const auto& backward_op() {
  static auto op = find_op<decltype(normalize_backward)>("torch_cudnn_ext::_normalize_backward");
  return op;
}

struct NormGradient {
  static constexpr const char* kName = "TorchCudnnExtNormalizeBackward";
  static constexpr size_t kInputs = 3;  // input, weight, bias
  std::string kind;
  int64_t groups = 1;
  double epsilon = 0;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(kind);
    visit(groups);
    visit(epsilon);
    visit(policy);
  }
  // Saved: input, weight, mean, invstd.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto [dx, dw, dbias] =
        call_directly({&grads[0], &saved[0], &saved[1], &saved[2], &saved[3]}, normalize_backward,
                      backward_op(), grads[0], saved[0], optional_of(saved[1]), saved[2], saved[3],
                      kind, groups, bool(needed[2]), epsilon, policy);
    return {needed[0] ? dx : Tensor(), needed[1] ? dw : Tensor(), needed[2] ? dbias : Tensor()};
  }
};

Tensors3 normalize_autograd(c10::DispatchKeySet keys, const Tensor& input,
                            const OptionalTensor& weight, const OptionalTensor& bias,
                            std::string_view kind, int64_t groups, double epsilon, bool statistics,
                            OptionalPolicy policy) {
  const Tensor &w = or_undefined(weight), &b = or_undefined(bias);
  bool wanted =
      at::GradMode::is_enabled() && (input.requires_grad() || (w.defined() && w.requires_grad()) ||
                                     (b.defined() && b.requires_grad()));
  return run_with_gradient<NormGradient>(
      {input, w, b}, 1,
      [&] {
        return normalize_op().redispatch(keys & c10::after_autograd_keyset, input, weight, bias,
                                         kind, groups, epsilon, statistics || wanted, policy);
      },
      [&](auto& node, const auto& results) {
        node.gradient.kind = kind;
        node.gradient.groups = groups;
        node.gradient.epsilon = epsilon;
        node.gradient.policy = policy_to_save(LayerNormProblem::kFamily, policy);
        save_input(node, input);
        save_input(node, w);
        save_input(node, results[1]);
        save_input(node, results[2]);
      });
}

// The statistics are functions of the input, and enter as such.
struct NormBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtNormalizeBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, weight
  std::string kind;
  int64_t groups = 1;
  double epsilon = 0;

  template <class F>
  void attributes(F&& visit) {
    visit(kind);
    visit(groups);
    visit(epsilon);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    auto formula = [&](const std::vector<Tensor>& in) {
      return gradients(kind_of(kind), in[0], in[1], in[2], groups, epsilon,
                       compute_dtype(in[1].scalar_type()));
    };
    variable_list given = grads;  // of results that there are
    for (size_t i : {1, 2}) {
      if (given[i].defined() && given[i].sym_numel() == 0) given[i] = Tensor();
    }
    return gradients_of_formula(formula, saved, given, needed);
  }
};

Tensors3 normalize_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                                     const Tensor& input, const OptionalTensor& weight,
                                     const Tensor& mean, const Tensor& invstd,
                                     std::string_view kind, int64_t groups, bool has_bias,
                                     double epsilon, OptionalPolicy policy) {
  const Tensor& w = or_undefined(weight);
  return run_with_gradient<NormBackwardGradient>(
      {grad_output, input, w}, 3,
      [&] {
        return backward_op().redispatch(keys & c10::after_autograd_keyset, grad_output, input,
                                        weight, mean, invstd, kind, groups, has_bias, epsilon,
                                        policy);
      },
      [&](auto& node, const auto&) {
        node.gradient.kind = kind;
        node.gradient.groups = groups;
        node.gradient.epsilon = epsilon;
        save_input(node, grad_output);
        save_input(node, input);
        save_input(node, w);
      });
}

// --- the public operators: views of the one above

Tensor normalised(const Tensor& rows, const OptionalTensor& weight, const OptionalTensor& bias,
                  std::string_view kind, int64_t groups, double epsilon, OptionalPolicy policy) {
  const Tensor &w = or_undefined(weight), &b = or_undefined(bias);
  return std::get<0>(call_directly({&rows, &w, &b}, run_normalize, normalize_op(), rows, weight,
                                   bias, kind, groups, epsilon, false, policy));
}

// A view, where that is another tensor: autograd records every one.
Tensor with_sizes(const Tensor& t, SymIntArrayRef sizes) {
  return t.sym_sizes().equals(sizes) ? t : t.reshape_symint(sizes);
}

// The same of a result, which is nobody's view: users may write into it.
Tensor result_with_sizes(const Tensor& t, SymIntArrayRef sizes) {
  return t.sym_sizes().equals(sizes) ? t : at::_unsafe_view_symint(t, sizes);
}

// On the CPU, PyTorch's group and RMS norm keep channels_last, and on Meta RMS norm does; all
// others give contiguous tensors.
Tensor in_pytorchs_layout(const Tensor& y, const Tensor& input, bool on_meta) {
  Tensor shaped = result_with_sizes(y, input.sym_sizes());
  bool keeps = input.is_cpu() || (on_meta && input.is_meta());
  return keeps ? shaped.contiguous(input.suggest_memory_format()) : shaped;
}

// [rows, n], where n counts the elements of the last dimensions, whose sizes are
// `normalized_shape`.
Tensor as_rows(const char* op, const Tensor& input, SymIntArrayRef normalized_shape) {
  auto count = static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK_VALUE(count >= 1, "torch_cudnn_ext::", op,
                    ": normalized_shape is empty, wanted at least one size");
  bool ends_so = input.dim() >= count &&
                 input.sym_sizes().slice(input.dim() - count, count).equals(normalized_shape);
  TORCH_CHECK_VALUE(ends_so, "torch_cudnn_ext::", op, ": normalized_shape is ", normalized_shape,
                    ", wanted the last sizes of input, which has ", input.sym_sizes());
  SymInt rows = 1, n = 1;
  for (int64_t i = 0; i < input.dim(); ++i)
    (i < input.dim() - count ? rows : n) *= input.sym_size(i);
  return with_sizes(input, {rows, n});
}

// Parameters of layer norms have the normalised sizes.
OptionalTensor flat(const char* op, const char* name, const OptionalTensor& t,
                    SymIntArrayRef normalized_shape) {
  if (!t) return t;
  TORCH_CHECK_VALUE(t->sym_sizes().equals(normalized_shape), "torch_cudnn_ext::", op, ": ", name,
                    " has sizes ", t->sym_sizes(), ", wanted normalized_shape ", normalized_shape);
  return with_sizes(*t, {t->sym_numel()});
}

Tensor layer_norm(const Tensor& input, SymIntArrayRef normalized_shape,
                  const OptionalTensor& weight, const OptionalTensor& bias, double epsilon,
                  OptionalPolicy policy) {
  constexpr const char* kOp = "layer_norm";
  Tensor y = normalised(as_rows(kOp, input, normalized_shape),
                        flat(kOp, "weight", weight, normalized_shape),
                        flat(kOp, "bias", bias, normalized_shape), "layer", 1, epsilon, policy);
  return result_with_sizes(y, input.sym_sizes());
}

// Of the dtype that sums are taken in.
double smallest_step(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::epsilon()
                              : std::numeric_limits<float>::epsilon();
}

Tensor rms_norm(const Tensor& input, SymIntArrayRef normalized_shape, const OptionalTensor& weight,
                std::optional<double> epsilon, OptionalPolicy policy) {
  constexpr const char* kOp = "rms_norm";
  OptionalTensor w = flat(kOp, "weight", weight, normalized_shape);
  auto dtype = input.scalar_type();
  bool mixed = w && at::isFloatingType(w->scalar_type()) && w->scalar_type() != dtype;
  if (mixed) w = w->to(compute_dtype(dtype));  // PyTorch takes any two
  Tensor y = normalised(as_rows(kOp, input, normalized_shape), w, {}, "rms", 1,
                        epsilon.value_or(smallest_step(input.scalar_type())), policy);
  return in_pytorchs_layout(y, input, true);
}

// [batch, channels, space]
Tensor as_channels(const char* op, const Tensor& input, int64_t least_dims) {
  TORCH_CHECK_VALUE(input.dim() >= least_dims, "torch_cudnn_ext::", op, ": input has sizes ",
                    input.sym_sizes(), ", wanted at least ", least_dims,
                    " dimensions (batch, channels, ...)");
  SymInt space = 1;
  for (int64_t i = 2; i < input.dim(); ++i) space *= input.sym_size(i);
  return with_sizes(input, {input.sym_size(0), input.sym_size(1), space});
}

Tensor group_norm(const Tensor& input, int64_t num_groups, const OptionalTensor& weight,
                  const OptionalTensor& bias, double epsilon, OptionalPolicy policy) {
  Tensor x = as_channels("group_norm", input, 2);
  if (input.dim() == 3)
    x = x.contiguous();  // a transposed sequence is not an image of channels_last
  TORCH_CHECK_VALUE(num_groups >= 1 && x.sym_size(1) % num_groups == 0,
                    "torch_cudnn_ext::group_norm: num_groups is ", num_groups,
                    ", wanted a divisor of input's ", x.sym_size(1), " channels");
  Tensor y = normalised(x, weight, bias, "group", num_groups, epsilon, policy);
  return in_pytorchs_layout(y, input, false);
}

void check_running(const char* name, const OptionalTensor& t, const Tensor& input) {
  constexpr const char* kOp = "instance_norm";
  if (!t) return;
  check_dtype(kOp, name, *t);
  TORCH_CHECK_VALUE(t->dim() == 1 && t->sym_size(0) == input.sym_size(1), "torch_cudnn_ext::", kOp,
                    ": ", name, " has sizes ", t->sym_sizes(), ", wanted one for each of input's ",
                    input.sym_size(1), " channels");
  check_device(kOp, name, *t, "input", input);
  TORCH_CHECK_VALUE(!t->requires_grad() || !at::GradMode::is_enabled(), "torch_cudnn_ext::", kOp,
                    ": ", name, " requires a gradient, wanted a tensor without: ", kOp,
                    " is not differentiable with respect to it");
}

// The new value's share of a running statistic is `momentum`; over the batch they are averaged.
void update_running(const Tensor& running, const Tensor& values, double momentum) {
  Tensor mean = values.mean(0);
  Tensor before = running.to(at::promote_types(running.scalar_type(), mean.scalar_type()));
  running.copy_(before * (1 - momentum) + mean * momentum);  // lerp_ makes NaN of infinities
}

Tensor instance_norm(const Tensor& input, const OptionalTensor& running_mean,
                     const OptionalTensor& running_var, const OptionalTensor& weight,
                     const OptionalTensor& bias, bool use_input_stats, double momentum,
                     double epsilon, OptionalPolicy policy) {
  constexpr const char* kOp = "instance_norm";
  Tensor x = as_channels(kOp, input, 3);
  TORCH_CHECK_VALUE(running_mean.has_value() == running_var.has_value(), "torch_cudnn_ext::", kOp,
                    ": got one of running_mean and running_var, wanted both or neither");
  check_running("running_mean", running_mean, x);
  check_running("running_var", running_var, x);
  if (!use_input_stats) {
    TORCH_CHECK_VALUE(running_mean, "torch_cudnn_ext::", kOp,
                      ": running_mean is missing, wanted one where use_input_stats is False");
    check_arguments(LayerNormKind::instance, x, weight, bias);
    auto has_type_of_x = [&](const OptionalTensor& t) {
      return !t || t->scalar_type() == x.scalar_type();
    };
    bool all = has_type_of_x(weight) && has_type_of_x(bias) && has_type_of_x(running_mean) &&
               has_type_of_x(running_var);
    auto dtype = all ? x.scalar_type() : compute_dtype(x.scalar_type());
    // Contiguous, since PyTorch 2.11's gradient on the CPU reads beside numbers that have gaps.
    auto fitting = [&](const OptionalTensor& t) {
      return t ? t->to(dtype).contiguous() : Tensor();
    };
    // A gradient reads copies, since a training forward may change the running statistics first.
    bool copies =
        torch::autograd::compute_requires_grad(x, or_undefined(weight), or_undefined(bias));
    auto kept = [&](const OptionalTensor& running) {
      Tensor t = fitting(running);
      return copies && t.is_same(*running) ? t.clone() : t;
    };
    // Given statistics leave nothing to choose: this is one scale and shift a channel.
    return at::batch_norm(x.contiguous(), fitting(weight), fitting(bias), kept(running_mean),
                          kept(running_var), false, 0, epsilon,
                          at::globalContext().userEnabledCuDNN())
        .view_symint(input.sym_sizes());
  }
  TORCH_CHECK_VALUE(x.sym_size(2) != 1, "torch_cudnn_ext::", kOp, ": input has sizes ",
                    input.sym_sizes(), ", wanted more than one element in space");
  Tensor y = normalised(x, weight, bias, "instance", 1, epsilon, policy);
  if (running_mean && x.sym_size(2) != 0) {
    at::NoGradGuard no_grad;
    // Not from what the algorithm leaves: beside epsilon a small variance is lost.
    Tensor values = x.to(compute_dtype(x.scalar_type()));
    update_running(*running_mean, values.mean(2), momentum);
    update_running(*running_var, values.var(2), momentum);
  }
  return y.view_symint(input.sym_sizes());
}

// As PyTorch does, on CUDA alone: layer and group norm compute in float32.
Tensor layer_norm_autocast(const Tensor& input, SymIntArrayRef normalized_shape,
                           const OptionalTensor& weight, const OptionalTensor& bias, double epsilon,
                           OptionalPolicy policy) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastCUDA);
  using at::autocast::cached_cast;
  return layer_norm(cached_cast(at::kFloat, input), normalized_shape,
                    cached_cast(at::kFloat, weight), cached_cast(at::kFloat, bias), epsilon,
                    policy);
}

Tensor group_norm_autocast(const Tensor& input, int64_t num_groups, const OptionalTensor& weight,
                           const OptionalTensor& bias, double epsilon, OptionalPolicy policy) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastCUDA);
  using at::autocast::cached_cast;
  return group_norm(cached_cast(at::kFloat, input), num_groups, cached_cast(at::kFloat, weight),
                    cached_cast(at::kFloat, bias), epsilon, policy);
}

// --- PyTorch's own, overridden

OptionalTensor given(const OptionalTensor& t) { return t ? optional_of(*t) : t; }

std::optional<std::string> refusal_of_norm(c10::DispatchKeySet keys, const Tensor& input,
                                           const OptionalTensor& weight,
                                           const OptionalTensor& bias) {
  const Tensor &w = or_undefined(weight), &b = or_undefined(bias);
  if (auto reason = refusal_of_any(keys, {{"input", input}, {"weight", w}, {"bias", b}})) {
    return reason;
  }
  if (auto reason = refusal_of_dtypes(input, {{"weight", w}, {"bias", b}})) return reason;
  if (w.defined() && b.defined() && w.scalar_type() != b.scalar_type()) {
    return "weight and bias have different dtypes";
  }
  return std::nullopt;
}

struct AtenLayerNorm {
  static constexpr const char* kOp = "layer_norm";

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input,
                                            SymIntArrayRef, const OptionalTensor& weight,
                                            const OptionalTensor& bias, double, bool) {
    return refusal_of_norm(keys, input, weight, bias);
  }
  static Tensor with_autograd(c10::DispatchKeySet, const Tensor& input,
                              SymIntArrayRef normalized_shape, const OptionalTensor& weight,
                              const OptionalTensor& bias, double epsilon, bool) {
    return layer_norm(input, normalized_shape, given(weight), given(bias), epsilon, std::nullopt);
  }
};

struct AtenGroupNorm {
  static constexpr const char* kOp = "group_norm";

  static std::optional<std::string> refusal(c10::DispatchKeySet keys, const Tensor& input, int64_t,
                                            const OptionalTensor& weight,
                                            const OptionalTensor& bias, double, bool) {
    return refusal_of_norm(keys, input, weight, bias);
  }
  static Tensor with_autograd(c10::DispatchKeySet, const Tensor& input, int64_t num_groups,
                              const OptionalTensor& weight, const OptionalTensor& bias,
                              double epsilon, bool) {
    return group_norm(input, num_groups, given(weight), given(bias), epsilon, std::nullopt);
  }
};

const RegisterOverrideOfComposite<AtenLayerNorm,
                                  Tensor(const Tensor&, SymIntArrayRef, const OptionalTensor&,
                                         const OptionalTensor&, double, bool)>
    layer_norm_overridden("layer_norm");
const RegisterOverrideOfComposite<AtenGroupNorm,
                                  Tensor(const Tensor&, int64_t, const OptionalTensor&,
                                         const OptionalTensor&, double, bool)>
    group_norm_overridden("group_norm");

// --- what the core must know

class LayerNormOperator : public OperatorOf<LayerNormProblem> {
 public:
  OperatorDescription description() const override {
    return {
        "cudnnBackendExecute, cudnnBatchNormalizationForwardTraining, "
        "cudnnBatchNormalizationBackward",
        "layer, rms: contiguous rows; instance: nchw, nhwc; group: nchw",
        "graph: no f64; legacy: instance and group norms of nchw; group norm has no engine of its "
        "own: an instance norm of groups",
        {"layer_norm_fwd x=f16[4096,1024]:nchw kind=layer w=f16 bias=f16",
         "layer_norm_fwd x=f16[32,64,3136]:nchw kind=instance w=f16 bias=f16"}};
  }

  // Of instance and group norm, as batch norms of one sample.
  std::vector<LegacyName> legacy_names(const std::string&) const override {
    return {{1, "CUDNN_BATCHNORM_SPATIAL", "spatial", nullptr},
            {2, "CUDNN_BATCHNORM_SPATIAL_PERSISTENT", "spatial_persistent", nullptr}};
  }

  std::vector<SlotSpec> slots(const LayerNormProblem& p) const override {
    bool forward = p.pass == Pass::fwd;
    std::vector<SlotSpec> slots{{Role::x, p.x, false}};
    if (!forward) slots.push_back({Role::dy, p.x, false});
    if (p.w) slots.push_back({Role::w, p.parameters(*p.w), false});
    if (forward && p.bias) slots.push_back({Role::bias, p.parameters(*p.bias), false});
    slots.push_back({forward ? Role::y : Role::dx, p.x, true});
    if (p.stats && p.has_mean()) slots.push_back({Role::mean, p.statistics(), forward});
    if (p.stats) slots.push_back({Role::invstd, p.statistics(), forward});
    if (!forward && p.w) slots.push_back({Role::dw, p.parameters(*p.w), true});
    if (!forward && p.bias) slots.push_back({Role::dbias, p.parameters(*p.bias), true});
    return slots;
  }

  Cost cost(const LayerNormProblem& p) const override {
    auto elements = static_cast<double>(p.x.numel());
    double bytes = bytes_of(slots(p));
    bool forward = p.pass == Pass::fwd;
    // Sum, centred square, its sum, scale and shift; of a gradient about twice that.
    auto v = p.view();
    int64_t length = forward ? v.length() : std::max(v.length(), v.batch * v.space);
    return {(forward ? 6 : 12) * elements, bytes, static_cast<double>(length)};
  }

  // A gradient is taken with the statistics that a forward would have left.
  void prepare_scratch(const LayerNormProblem& p, Bindings& bindings) const override {
    if (p.pass == Pass::fwd) return;
    Normalised n = normalised_in_double(p, bindings);
    if (p.has_mean()) bindings[Role::mean].copy_(n.mean.flatten());
    bindings[Role::invstd].copy_(n.invstd.flatten());
  }

  Bindings reference(const LayerNormProblem& p, const Bindings& bindings) const override {
    const Tensor &x = bindings[Role::x], &w = bindings[Role::w], &bias = bindings[Role::bias];
    Bindings out;
    if (p.pass == Pass::bwd) {
      auto results =
          gradients(p.kind, bindings[Role::dy], x, w, p.groups, bindings.epsilon, at::kDouble);
      out[Role::dx] = results[0];
      if (p.w) out[Role::dw] = results[1];
      if (p.bias) out[Role::dbias] = results[2];
      return out;
    }
    SymView v = view_of(p.kind, x, p.groups);
    Normalised n = normalised_in_double(p, bindings);
    Tensor y = n.x;
    if (p.w) y = y * parameter_viewed(w.to(at::kDouble), v);
    if (p.bias) y = y + parameter_viewed(bias.to(at::kDouble), v);
    out[Role::y] = y.reshape(p.x.sizes);
    if (p.stats && p.has_mean()) out[Role::mean] = n.mean.flatten();
    if (p.stats) out[Role::invstd] = n.invstd.flatten();
    return out;
  }

  // Rounding of statistics that PyTorch keeps in the data's type on the CPU, of an affine step of
  // its own, and of sums in float32 at least.
  double tolerance(const LayerNormProblem& p, const Notes&) const override {
    double rounded = 8 * epsilon_of(p.x.dtype) +
                     4 * epsilon_of(compute_dtype(p.x.dtype)) * std::sqrt(cost(p).reduction_length);
    if (p.pass == Pass::fwd) return rounded;
    return rounded * conditioning_of_norm(p.view().length(), p.has_mean() ? 2 : 1);
  }

  // PyTorch's own kernels read each row once. Its instance norm is cuDNN's batch norm, with copies,
  // or of few instances a kernel of its own, whose gradients of rows below 16384 took 0.74 of the
  // time on an H100 (geometric mean of 539), and those of longer ones 1.1 times as long (of 70).
  std::vector<std::string> heuristic_order(const LayerNormProblem& p) const override {
    bool plain = p.kind == LayerNormKind::instance && p.x.strides == contiguous_strides(p.x.sizes);
    bool short_rows = c10::multiply_integers(p.x.sizes.begin() + 2, p.x.sizes.end()) < 16384;
    if (!plain || (p.pass == Pass::bwd && short_rows)) return {"aten", "graph", "legacy"};
    return {"legacy:spatial_persistent", "legacy:spatial", "aten"};
  }

 private:
  static Normalised normalised_in_double(const LayerNormProblem& p, const Bindings& bindings) {
    const Tensor& x = bindings[Role::x];
    SymView v = view_of(p.kind, x, p.groups);
    return normalise(p.kind, viewed(x.to(at::kDouble), v), bindings.epsilon);
  }
};

const RegisterOperator<LayerNormOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("_normalize", TORCH_FN(normalize));
  m.impl("_normalize_backward", TORCH_FN(normalize_backward));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("_normalize", TORCH_FN(normalize_meta));
  m.impl("_normalize_backward", TORCH_FN(normalize_backward_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("_normalize", TORCH_FN(normalize_autograd));
  m.impl("_normalize_backward", TORCH_FN(normalize_backward_autograd));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CompositeImplicitAutograd, m) {
  m.impl("layer_norm", TORCH_FN(layer_norm));
  m.impl("rms_norm", TORCH_FN(rms_norm));
  m.impl("group_norm", TORCH_FN(group_norm));
  m.impl("instance_norm", TORCH_FN(instance_norm));
}

// A schema that may change tensors has no loop over samples: vmap sees what it is made of.
TORCH_LIBRARY_IMPL(torch_cudnn_ext, FuncTorchBatched, m) {
  m.impl("instance_norm", TORCH_FN(instance_norm));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  m.impl("layer_norm", TORCH_FN(layer_norm_autocast));
  m.impl("group_norm", TORCH_FN(group_norm_autocast));
}

}  // namespace layer_norm
}  // namespace torch_cudnn_ext
