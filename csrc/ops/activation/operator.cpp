// Elementwise activations: argument checks, Problem, gradients, in place on request, and what the
// core must know of them.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <cmath>

#include "core/select/execute.h"
#include "ops/autograd.h"

namespace torch_cudnn_ext {

// A ceiling is what the data's type makes of it, so that an output that reached it is told from one
// that did not. Functions whose derivative the output tells never read the input.
void ActivationProblem::canonicalise() {
  if (!has_coefficient()) coefficient = 1;
  if (kind == ActivationKind::clipped_relu && x.dtype != at::kDouble) {
    auto narrow = static_cast<float>(coefficient);
    if (x.dtype == at::kHalf) narrow = static_cast<c10::Half>(narrow);
    if (x.dtype == at::kBFloat16) narrow = static_cast<c10::BFloat16>(narrow);
    if (std::isfinite(narrow) && narrow != 0) coefficient = narrow;
  }
  from_output = pass == Pass::bwd && (from_output || !has_coefficient());
  canonicalise_strides({&x});
}

void ActivationProblem::validate() const {
  check_sizes("activation", "x", x, 1, 1);
  TORCH_CHECK_VALUE(x.strides[0] == 1, "activation: x has the stride ", x.strides[0],
                    ", wanted 1: a dense tensor of any shape is [n]");
  TORCH_CHECK_VALUE(std::isfinite(coefficient), "activation: coefficient is ", coefficient,
                    ", wanted a finite number");
  TORCH_CHECK_VALUE(kind != ActivationKind::clipped_relu || coefficient > 0,
                    "activation: coefficient is ", coefficient,
                    ", wanted a ceiling above 0 for clipped_relu");
  TORCH_CHECK_VALUE(!from_output || kind != ActivationKind::swish,
                    "activation: from_output is true, but the gradient of swish cannot be told "
                    "from its output");
  TORCH_CHECK_VALUE(!from_output || kind != ActivationKind::elu || coefficient >= 0,
                    "activation: coefficient is ", coefficient,
                    ", wanted an alpha of at least 0 where elu's gradient is computed from y");
  check_alignment("activation", alignment, x.dtype);
}

namespace activation {
namespace {

Tensor forward_formula(ActivationKind kind, double c, const Tensor& x) {
  switch (kind) {
    case ActivationKind::relu:
      return x.clamp_min(0);
    case ActivationKind::clipped_relu:
      return x.clamp(0, c);
    case ActivationKind::tanh:
      return x.tanh();
    case ActivationKind::sigmoid:
      return x.sigmoid();
    case ActivationKind::elu:
      return at::where(x > 0, x, c * x.clamp_max(0).expm1());
    case ActivationKind::swish:
      return x * (c * x).sigmoid();
  }
  TORCH_INTERNAL_ASSERT(false);
}

// dx, from x, or from y where x is undefined.
Tensor backward_formula(ActivationKind kind, double c, const Tensor& dy, const Tensor& x,
                        const Tensor& y) {
  const Tensor& v = x.defined() ? x : y;
  switch (kind) {
    case ActivationKind::relu:
      return dy.masked_fill(v <= 0, 0);
    case ActivationKind::clipped_relu:
      return dy.masked_fill((v <= 0).logical_or(v >= c), 0);
    case ActivationKind::tanh:
      return dy * (1 - y * y);
    case ActivationKind::sigmoid:
      return dy * (y * (1 - y));
    case ActivationKind::elu:
      return dy * at::where(v > 0, 1, x.defined() ? c * x.masked_fill(x >= 0, 0).exp() : y + c);
    case ActivationKind::swish: {
      Tensor s = (c * x).sigmoid();
      return dy * s * (1 + c * x * (1 - s));
    }
  }
  TORCH_INTERNAL_ASSERT(false);
}

// A problem of the arguments, of one element as yet.
ActivationProblem problem_of(const char* op, const Tensor& t, std::string_view kind,
                             double coefficient, Pass pass, bool from_output) {
  check_dtype(op, pass == Pass::fwd ? "input" : "output", t);
  ActivationProblem p;
  p.pass = pass;
  p.kind = activation_kind_from_text(c10::str("torch_cudnn_ext::", op, ": kind"), kind);
  p.coefficient = coefficient;
  p.from_output = from_output;
  p.x = {t.scalar_type(), {1}, {1}};
  p.canonicalise();
  p.validate();
  return p;
}

// The same elements side by side, in the order of `like` where it is given.
Tensor dense(const Tensor& t, const Tensor& like = {}) {
  if (!t.defined()) return t;
  if (!like.defined()) return is_dense(t) ? t : t.clone(at::MemoryFormat::Preserve);
  if (t.strides() == like.strides()) return t;
  return at::empty_strided(like.sizes(), like.strides(), t.options()).copy_(t);
}

// All tensors are dense in one order. The result may be x or dy.
void run_into(ActivationProblem p, const Tensor& x, const Tensor& y, const Tensor& dy,
              const Tensor& dx, OptionalPolicy policy) {
  if (y.numel() == 0) return;
  Bindings bindings;
  bindings[Role::x] = flat(x);
  bindings[Role::y] = flat(y);
  bindings[Role::dy] = flat(dy);
  bindings[Role::dx] = flat(dx);
  p.x = spec_of(bindings[Role::y]);
  p.alignment = alignment_of({&x, &y, &dy, &dx});
  execute(p, resolve_policy(ActivationProblem::kFamily, policy), device_of(y.device()), bindings);
}

Tensor forward(const Tensor& input, std::string_view kind, double coefficient,
               OptionalPolicy policy) {
  auto p = problem_of("activation", input, kind, coefficient, Pass::fwd, false);
  c10::OptionalDeviceGuard guard(input.device());
  Tensor x = dense(input);
  Tensor y = at::empty_like(x);
  run_into(p, x, y, {}, {}, policy);
  return y;
}

void forward_inplace(Tensor& input, std::string_view kind, double coefficient,
                     OptionalPolicy policy) {
  auto p = problem_of("activation_", input, kind, coefficient, Pass::fwd, false);
  c10::OptionalDeviceGuard guard(input.device());
  at::assert_no_internal_overlap(input);
  Tensor x = dense(input);
  run_into(p, x, x, {}, {}, policy);
  if (!x.is_same(input)) input.copy_(x);
}

void check_backward(const char* op, const ActivationProblem& p, const Tensor& grad_output,
                    const OptionalTensor& input, const Tensor& output) {
  check_same(op, "output", output, "grad_output", grad_output);
  if (has(input)) check_same(op, "input", *input, "grad_output", grad_output);
  TORCH_CHECK_VALUE(p.from_output || has(input), "torch_cudnn_ext::", op,
                    ": input is None, wanted the forward's input");
}

// The tensor whose layout the gradient has, as in PyTorch: dy, or the output for relu and if dy is
// not dense.
const Tensor& in_order(ActivationKind kind, const Tensor& grad_output, const Tensor& output) {
  return kind != ActivationKind::relu && is_dense(grad_output) ? grad_output : output;
}

// Where the gradient is computed from y alone, x is not read.
void backward_into(const ActivationProblem& p, const Tensor& dy, const OptionalTensor& input,
                   const Tensor& y, const Tensor& dx, OptionalPolicy policy) {
  Tensor x = p.from_output ? Tensor() : dense(*input, y);
  run_into(p, x, y, dy, dx, policy);
}

Tensor backward(const Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                std::string_view kind, double coefficient, OptionalPolicy policy) {
  const char* op = "activation_backward";
  auto p = problem_of(op, output, kind, coefficient, Pass::bwd, !has(input));
  check_backward(op, p, grad_output, input, output);
  c10::OptionalDeviceGuard guard(output.device());
  Tensor dx = at::empty_like(in_order(p.kind, grad_output, output));
  backward_into(p, dense(grad_output, dx), input, dense(output, dx), dx, policy);
  return dx;
}

void backward_inplace(Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                      std::string_view kind, double coefficient, OptionalPolicy policy) {
  const char* op = "activation_backward_";
  auto p = problem_of(op, output, kind, coefficient, Pass::bwd, !has(input));
  check_backward(op, p, grad_output, input, output);
  c10::OptionalDeviceGuard guard(output.device());
  at::assert_no_internal_overlap(grad_output);
  Tensor y = dense(output);
  Tensor dy = dense(grad_output, y);
  backward_into(p, dy, input, y, dy, policy);
  if (!dy.is_same(grad_output)) grad_output.copy_(dy);
}

Tensor forward_meta(const Tensor& input, std::string_view kind, double coefficient,
                    OptionalPolicy) {
  problem_of("activation", input, kind, coefficient, Pass::fwd, false);
  return at::empty_like(input);
}

void forward_inplace_meta(Tensor& input, std::string_view kind, double coefficient,
                          OptionalPolicy policy) {
  forward_meta(input, kind, coefficient, policy);
}

Tensor backward_meta(const Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                     std::string_view kind, double coefficient, OptionalPolicy) {
  const char* op = "activation_backward";
  auto p = problem_of(op, output, kind, coefficient, Pass::bwd, !has(input));
  check_backward(op, p, grad_output, input, output);
  return at::empty_like(in_order(p.kind, grad_output, output));
}

void backward_inplace_meta(Tensor& grad_output, const OptionalTensor& input, const Tensor& output,
                           std::string_view kind, double coefficient, OptionalPolicy policy) {
  backward_meta(grad_output, input, output, kind, coefficient, policy);
}

// --- gradients

const auto& forward_op() {
  static auto op = find_op<decltype(forward)>("torch_cudnn_ext::activation");
  return op;
}
const auto& forward_inplace_op() {
  static auto op = find_op<decltype(forward_inplace)>("torch_cudnn_ext::activation_");
  return op;
}
const auto& backward_op() {
  static auto op = find_op<decltype(backward)>("torch_cudnn_ext::activation_backward");
  return op;
}
const auto& backward_inplace_op() {
  static auto op = find_op<decltype(backward_inplace)>("torch_cudnn_ext::activation_backward_");
  return op;
}

// Whether nobody else can see this gradient, so that its memory may be written.
bool is_ours_alone(const Tensor& grad) {
  return !at::GradMode::is_enabled() && !c10::impl::TorchDispatchModeTLS::any_modes_set() &&
         grad.use_count() == 1 && grad.has_storage() && grad.storage().use_count() == 1 &&
         is_dense(grad);
}

struct ActivationGradient {
  static constexpr const char* kName = "TorchCudnnExtActivationBackward";
  static constexpr size_t kInputs = 1;
  std::string kind;
  double coefficient = 1;
  bool inplace = false;  // the gradient too, where that cannot be noticed
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(kind);
    visit(coefficient);
    visit(inplace);
    visit(policy);
  }
  // `saved` is x, undefined where it is not read, and y.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    OptionalTensor x = optional_of(saved[0]);
    if (inplace && is_ours_alone(grads[0])) {
      Tensor grad = grads[0];
      backward_inplace_op().call(grad, x, saved[1], kind, coefficient, policy);
      return {grad};
    }
    return {backward_op().call(grads[0], x, saved[1], kind, coefficient, policy)};
  }
  // The output; where x is kept, PyTorch's own gradient reads that alone.
  Tensor remade(TensorList before) const {
    if (!before[0].defined()) return Tensor();
    return forward_op().call(before[0].detach(), kind, coefficient, policy);
  }
};

void set_attributes(ActivationGradient& gradient, std::string_view kind, double coefficient,
                    OptionalPolicy policy) {
  gradient.kind = kind;
  gradient.coefficient = coefficient;
  gradient.policy = policy_to_save(ActivationProblem::kFamily, policy);
}

Tensor forward_autograd(c10::DispatchKeySet keys, const Tensor& input, std::string_view kind,
                        double coefficient, OptionalPolicy policy) {
  return run_with_gradient<ActivationGradient>(
      {input}, 1,
      [&] {
        return forward_op().redispatch(keys & c10::after_autograd_keyset, input, kind, coefficient,
                                       policy);
      },
      [&](auto& node, const auto& results) {
        set_attributes(node.gradient, kind, coefficient, policy);
        auto p = problem_of("activation", input, kind, coefficient, Pass::bwd, false);
        save_input(node, p.from_output ? Tensor() : input);
        save_result(node, results[0]);
      });
}

// The tensor becomes the result of a node of its own. Only the gradient of swish needs what was
// overwritten: it keeps a copy, as PyTorch's does.
void forward_inplace_autograd(c10::DispatchKeySet keys, Tensor& input, std::string_view kind,
                              double coefficient, OptionalPolicy policy) {
  using namespace torch::autograd;
  bool wanted = compute_requires_grad(input);
  check_inplace(input, wanted);
  TORCH_CHECK_NOT_IMPLEMENTED(!isFwGradDefined(input), ActivationGradient::kName,
                              ": forward-mode AD is not supported by this operator");
  std::shared_ptr<GradientNode<ActivationGradient>> node;
  Tensor before;
  if (wanted) {
    auto p = problem_of("activation_", input, kind, coefficient, Pass::fwd, false);
    TORCH_CHECK_VALUE(p.kind != ActivationKind::elu || coefficient >= 0,
                      "torch_cudnn_ext::activation_: coefficient is ", coefficient,
                      ", wanted an alpha of at least 0: elu's gradient in place is computed from "
                      "its output");
    if (p.kind == ActivationKind::swish) before = input.clone();  // with its own history
    node = std::shared_ptr<GradientNode<ActivationGradient>>(new GradientNode<ActivationGradient>(),
                                                             deleteNode);
    node->set_next_edges(collect_next_edges(input));
  }
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    forward_inplace_op().redispatch(keys & c10::after_ADInplaceOrView_keyset, input, kind,
                                    coefficient, policy);
  }
  increment_version(input);
  if (!node) return;
  rebase_history(input, node);
  set_attributes(node->gradient, kind, coefficient, policy);
  node->gradient.inplace = true;
  save_input(*node, before);
  save_result(*node, input);
}

struct ActivationBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtActivationBackwardBackward";
  static constexpr size_t kInputs = 3;  // grad_output, input, output
  std::string kind;
  double coefficient = 1;
  std::optional<std::string> policy;

  template <class F>
  void attributes(F&& visit) {
    visit(kind);
    visit(coefficient);
    visit(policy);
  }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    const Tensor &dy = saved[0], &y = saved[1];
    Tensor x = saved.size() > 2 ? saved[2] : Tensor();
    variable_list result(3);
    if (needed[0]) result[0] = backward_op().call(grads[0], x, y, kind, coefficient, policy);
    auto p = problem_of("activation_backward", y, kind, coefficient, Pass::bwd, !x.defined());
    Role from = p.from_output ? Role::y : Role::x;
    if (!needed[from == Role::x ? 1 : 2]) return result;
    auto formula = [&](const std::vector<Tensor>& inputs) -> std::vector<Tensor> {
      bool of_x = from == Role::x;
      return {backward_formula(p.kind, p.coefficient, inputs[0], of_x ? inputs[1] : Tensor(),
                               of_x ? y : inputs[1])};
    };
    const Tensor& at = from == Role::x ? x : y;
    Tensor found = gradients_of_formula(formula, {dy, at}, grads, {false, true})[1];
    result[from == Role::x ? 1 : 2] = found.defined() ? found : at::zeros_like(at);
    return result;
  }
};

Tensor backward_autograd(c10::DispatchKeySet keys, const Tensor& grad_output,
                         const OptionalTensor& input, const Tensor& output, std::string_view kind,
                         double coefficient, OptionalPolicy policy) {
  return run_with_gradient<ActivationBackwardGradient>(
      {grad_output, or_undefined(input), output}, 1,
      [&] {
        return backward_op().redispatch(keys & c10::after_autograd_keyset, grad_output, input,
                                        output, kind, coefficient, policy);
      },
      [&](auto& node, const auto&) {
        node.gradient.kind = kind;
        node.gradient.coefficient = coefficient;
        node.gradient.policy = policy_to_save(ActivationProblem::kFamily, policy);
        save_input(node, grad_output);
        save_input(node, output);
        if (has(input)) save_input(node, *input);
      });
}

void backward_inplace_autograd(c10::DispatchKeySet keys, Tensor& grad_output,
                               const OptionalTensor& input, const Tensor& output,
                               std::string_view kind, double coefficient, OptionalPolicy policy) {
  using namespace torch::autograd;
  TORCH_CHECK(!compute_requires_grad(grad_output, input, output),
              "torch_cudnn_ext::activation_backward_: it is not differentiable, wanted tensors "
              "that require no gradient; use activation_backward");
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    backward_inplace_op().redispatch(keys & c10::after_ADInplaceOrView_keyset, grad_output, input,
                                     output, kind, coefficient, policy);
  }
  increment_version(grad_output);
}

// --- what the core must know

class ActivationOperator : public OperatorOf<ActivationProblem> {
 public:
  OperatorDescription description() const override {
    return {"cudnnBackendExecute, cudnnActivationForward, cudnnActivationBackward",
            "dense, any shape",
            "graph: gradients of elu and clipped_relu want x, so not behind a call in place",
            {"activation_fwd x=f16[6422528]:nchw kind=relu",
             "activation_fwd x=f16[6422528]:nchw kind=swish"}};
  }
  std::vector<BatchSize> batch_sizes() const override { return {}; }

  std::vector<SlotSpec> slots(const ActivationProblem& p) const override {
    if (p.pass == Pass::fwd) return {{Role::x, p.x, false}, {Role::y, p.x, true}};
    std::vector<SlotSpec> slots{
        {Role::y, p.x, false}, {Role::dy, p.x, false}, {Role::dx, p.x, true}};
    if (!p.from_output) slots.insert(slots.begin(), {Role::x, p.x, false});
    return slots;
  }

  Cost cost(const ActivationProblem& p) const override {
    auto tensors = static_cast<double>(slots(p).size());
    return {static_cast<double>(p.x.numel()), tensors * static_cast<double>(p.x.nbytes()), 1};
  }

  // A gradient is taken at a point that a forward would have given.
  void prepare_scratch(const ActivationProblem& p, Bindings& bindings) const override {
    if (p.pass == Pass::fwd) return;
    const Tensor& x = bindings[p.from_output ? Role::y : Role::x];
    bindings[Role::y].copy_(forward_formula(p.kind, p.coefficient, x.to(at::kDouble)));
  }

  Bindings reference(const ActivationProblem& p, const Bindings& bindings) const override {
    auto in_double = [&](Role role) { return bindings[role].to(at::kDouble); };
    Bindings out;
    if (p.pass == Pass::fwd) {
      out[Role::y] = forward_formula(p.kind, p.coefficient, in_double(Role::x));
    } else {
      out[Role::dx] =
          backward_formula(p.kind, p.coefficient, in_double(Role::dy),
                           p.from_output ? Tensor() : in_double(Role::x), in_double(Role::y));
    }
    return out;
  }

  // Rounding of the result, and of a few operations in float32 at least.
  double tolerance(const ActivationProblem& p, const Notes&) const override {
    auto compute = compute_dtype(p.x.dtype);
    // cuDNN computes tanh and its like in float32 with some digits less.
    return 2 * epsilon_of(p.x.dtype) + 128 * epsilon_of(compute);
  }

  std::vector<std::string> heuristic_order(const ActivationProblem&) const override {
    return {"aten", "legacy", "graph"};
  }
};

const RegisterOperator<ActivationOperator> registered;

void register_kernels(torch::Library& m) {
  m.impl("activation", TORCH_FN(forward));
  m.impl("activation_", TORCH_FN(forward_inplace));
  m.impl("activation_backward", TORCH_FN(backward));
  m.impl("activation_backward_", TORCH_FN(backward_inplace));
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_cudnn_ext, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Meta, m) {
  m.impl("activation", TORCH_FN(forward_meta));
  m.impl("activation_", TORCH_FN(forward_inplace_meta));
  m.impl("activation_backward", TORCH_FN(backward_meta));
  m.impl("activation_backward_", TORCH_FN(backward_inplace_meta));
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  m.impl("activation", TORCH_FN(forward_autograd));
  m.impl("activation_", TORCH_FN(forward_inplace_autograd));
  m.impl("activation_backward", TORCH_FN(backward_autograd));
  m.impl("activation_backward_", TORCH_FN(backward_inplace_autograd));
}

}  // namespace activation
}  // namespace torch_cudnn_ext
