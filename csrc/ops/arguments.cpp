#include "ops/arguments.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>

#include "core/tune/measure.h"
#include "core/writer.h"

namespace torch_cudnn_ext {

int64_t alignment_of(std::initializer_list<const Tensor*> tensors) {
  uintptr_t bits = 16;
  for (const Tensor* t : tensors) {
    if (t->defined()) bits |= reinterpret_cast<uintptr_t>(t->const_data_ptr());
  }
  return static_cast<int64_t>(bits & -bits);
}

void align(Bindings& bindings, std::initializer_list<Role> roles) {
  for (Role role : roles) {
    Tensor& t = bindings[role];
    if (t.defined() && (t.is_cuda() || role == Role::reserve)) t = aligned(t);
  }
}

bool is_plain_call(std::initializer_list<const Tensor*> tensors) {
  return !c10::GradMode::is_enabled() && are_plain_arguments(tensors);
}

bool are_plain_arguments(std::initializer_list<const Tensor*> tensors) {
  using c10::DispatchKey;
  using c10::DispatchKeySet;
  constexpr DispatchKeySet plain = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                   c10::autocast_dispatch_keyset |
                                   DispatchKeySet({DispatchKey::CPU, DispatchKey::CUDA});
  if (has_keys_beyond(thread_keys().included_, kKeysOfEveryThread)) return false;
  for (const Tensor* t : tensors) {
    if (!t->defined()) continue;
    if (has_keys_beyond(t->key_set(), plain) || has_tangent(*t)) return false;
  }
  return !are_operators_observed();
}

void check_dtype(const char* op, const char* name, c10::ScalarType dtype) {
  bool supported =
      dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kDouble;
  TORCH_CHECK_VALUE(supported, "torch_cudnn_ext::", op, ": ", name, " is ", dtype,
                    ", wanted Float, Half, BFloat16 or Double");
}

void check_device(const char* op, const char* name, const Tensor& t, const char* like_name,
                  const Tensor& like) {
  TORCH_CHECK_VALUE(t.device() == like.device(), "torch_cudnn_ext::", op, ": ", name, " is on ",
                    t.device(), ", wanted ", like_name, "'s device ", like.device());
}

void check_alike(const char* op, const char* name, const Tensor& t, const char* like_name,
                 const Tensor& like) {
  TORCH_CHECK_VALUE(t.scalar_type() == like.scalar_type(), "torch_cudnn_ext::", op, ": ", name,
                    " is ", t.scalar_type(), ", wanted ", like_name, "'s dtype ",
                    like.scalar_type());
  check_device(op, name, t, like_name, like);
}

void check_same(const char* op, const char* name, const Tensor& t, const char* like_name,
                const Tensor& like) {
  TORCH_CHECK_VALUE(t.sym_sizes() == like.sym_sizes(), "torch_cudnn_ext::", op, ": ", name,
                    " has sizes ", t.sym_sizes(), ", wanted ", like_name, "'s sizes ",
                    like.sym_sizes());
  check_alike(op, name, t, like_name, like);
}

void check_spatial(const char* op, const char* name, SymIntArrayRef values, int64_t dims,
                   int64_t least) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(values.size()) == dims, "torch_cudnn_ext::", op, ": ",
                    name, " is ", values, ", wanted ", dims, " values");
  for (const SymInt& value : values) {
    TORCH_CHECK_VALUE(value >= least && value <= std::numeric_limits<int>::max(),
                      "torch_cudnn_ext::", op, ": ", name, " is ", values, ", wanted at least ",
                      least, " and less than 2^31");
  }
}

int64_t check_dim(const char* op, const Tensor& t, int64_t dim) {
  int64_t dims = std::max<int64_t>(t.dim(), 1);
  TORCH_CHECK_VALUE(dim >= -dims && dim < dims, "torch_cudnn_ext::", op, ": dim is ", dim,
                    ", wanted at least ", -dims, " and less than ", dims, " for input of sizes ",
                    t.sym_sizes());
  return dim < 0 ? dim + dims : dim;
}

double epsilon_of(c10::ScalarType dtype) {
  if (dtype == at::kDouble) return 1.1e-16;
  if (dtype == at::kFloat) return 6e-8;
  return dtype == at::kHalf ? 4.9e-4 : 3.9e-3;
}

double conditioning_of_norm(int64_t length, int64_t removed) {
  if (length <= removed) return std::numeric_limits<double>::infinity();
  return small_sample_tolerance(length - removed);
}

std::optional<std::string> policy_to_save(std::string_view family, OptionalPolicy policy) {
  if (!is_tracing()) return resolve_policy(family, policy).saved;
  return policy ? std::optional<std::string>(*policy) : std::nullopt;
}

Tensor no_reserve(const Tensor& like) { return at::empty({0}, like.options().dtype(at::kByte)); }

OptionalPolicy policy_of_backward(std::string_view family, std::string_view op,
                                  const OptionalTensor& writer, OptionalPolicy policy) {
  resolve_policy(family, policy);  // raises if it is wrong
  OptionalPolicy of_forward = has(writer) ? policy_of_writer(op, *writer) : std::nullopt;
  return of_forward ? of_forward : policy;
}

const Tensor& or_undefined(const OptionalTensor& t) {
  static const Tensor none;
  return t ? *t : none;
}

}  // namespace torch_cudnn_ext
