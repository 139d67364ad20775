// Kernels and schemas of softmax and log-softmax. A problem is [outer, n, inner], summed over n.
#include <ATen/ops/empty.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/accumulate.h>

#include "core/tensors.h"
#include "ops/registration.h"
#include "ops/softmax/softmax.h"

namespace torch_cudnn_ext::softmax {
namespace {

const char* op_name(bool log) { return log ? "log_softmax" : "softmax"; }

// The view [outer, n, inner] of a contiguous tensor, in which n is dimension `dim`.
Tensor as_rows(const Tensor& t, int64_t dim) {
  int64_t n = t.size(dim), inner = c10::multiply_integers(t.sizes().slice(dim + 1));
  return strided_view(t, {t.numel() / (n * inner), n, inner}, {n * inner, inner, 1});
}

// Runs a pass. `first` is x, or dy with y as `second`. The result is contiguous, as PyTorch's is.
Tensor run(Pass pass, const Tensor& first, const Tensor& second, int64_t dim, bool log,
           OptionalPolicy policy) {
  if (first.dim() == 0) {  // a scalar is a row of one element
    Tensor row = second.defined() ? second.reshape({1}) : second;
    return run(pass, first.reshape({1}), row, 0, log, policy).reshape(at::IntArrayRef());
  }
  c10::OptionalDeviceGuard guard(first.device());
  if (first.numel() == 0) return at::empty(first.sizes(), first.options());
  Tensor a = first.contiguous(), b = second.defined() ? second.contiguous() : second;
  Bindings bindings;
  bool forward = pass == Pass::fwd;
  bindings[forward ? Role::x : Role::dy] = as_rows(a, dim);
  if (!forward) bindings[Role::y] = as_rows(b, dim);
  SoftmaxProblem p;
  p.pass = pass;
  p.log = log;
  p.x = spec_of(bindings[forward ? Role::x : Role::y]);
  p.canonicalise();
  p.alignment = alignment_of({&a, &b});
  run_problem(p, policy, a, bindings);
  return at::native::view(bindings[forward ? Role::y : Role::dx], first.sizes());
}

// Raises if the schema's dtype, which may be any integer, is not one.
void check_is_dtype(const char* op, std::optional<at::ScalarType> dtype) {
  auto number = static_cast<int>(dtype.value_or(at::kFloat));
  TORCH_CHECK_VALUE(number >= 0 && number < static_cast<int>(at::ScalarType::NumOptions),
                    "torch_cudnn_ext::", op, ": dtype is ", number, ", wanted a dtype");
}

int64_t check_backward(const Tensor& grad_output, const Tensor& output, int64_t dim) {
  check_dtype("softmax_backward", "grad_output", grad_output);
  check_same("softmax_backward", "output", output, "grad_output", grad_output);
  return check_dim("softmax_backward", output, dim);
}

}  // namespace

template <bool log>
Tensor forward(const Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype,
               OptionalPolicy policy) {
  const char* op = op_name(log);
  check_is_dtype(op, dtype);
  dim = check_dim(op, input, dim);
  Tensor x = dtype ? in_dtype(input, *dtype) : input;
  check_dtype(op, "input", x);
  return run(Pass::fwd, x, {}, dim, log, policy);
}

template Tensor forward<false>(const Tensor&, int64_t, std::optional<at::ScalarType>,
                               OptionalPolicy);
template Tensor forward<true>(const Tensor&, int64_t, std::optional<at::ScalarType>,
                              OptionalPolicy);

Tensor backward(const Tensor& grad_output, const Tensor& output, int64_t dim, bool log,
                OptionalPolicy policy) {
  dim = check_backward(grad_output, output, dim);
  return run(Pass::bwd, grad_output, output, dim, log, policy);
}

namespace {

template <bool log>
Tensor forward_meta(const Tensor& input, int64_t dim, std::optional<at::ScalarType> dtype,
                    OptionalPolicy) {
  check_is_dtype(op_name(log), dtype);
  check_dim(op_name(log), input, dim);
  Tensor y = at::empty_symint(input.sym_sizes(),
                              input.options().dtype(dtype.value_or(input.scalar_type())));
  check_dtype(op_name(log), "input", y);
  return y;
}

Tensor backward_meta(const Tensor& grad_output, const Tensor& output, int64_t dim, bool,
                     OptionalPolicy) {
  check_backward(grad_output, output, dim);
  return at::empty_symint(output.sym_sizes(), grad_output.options());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torch_cudnn_ext, m) {
  define_operator<forward<false>, forward_meta<false>>(
      m, "softmax(Tensor input, int dim, ScalarType? dtype=None, *, str? policy=None) -> Tensor",
      tags());
  define_operator<forward<true>, forward_meta<true>>(
      m,
      "log_softmax(Tensor input, int dim, ScalarType? dtype=None, *, str? policy=None) -> Tensor",
      tags());
  define_operator<backward, backward_meta>(
      m,
      "softmax_backward(Tensor grad_output, Tensor output, int dim, bool log, *, str? policy=None) "
      "-> Tensor",
      tags());
}

}  // namespace torch_cudnn_ext::softmax
