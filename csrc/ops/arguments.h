// What the kernels of all operators do with their arguments, and the rounding of each dtype. Knows
// no family.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymIntArrayRef.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/operator.h"
#include "core/policy/resolve.h"
#include "core/select/execute.h"
#include "core/tensors.h"
#include "problems/problem.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using OptionalTensor = std::optional<Tensor>;
using OptionalPolicy = std::optional<std::string_view>;

// The elements of a dense tensor in the order of memory. The tensor may be undefined.
inline Tensor flat(const Tensor& t) {
  return t.defined() ? t.as_strided({t.numel()}, {1}) : Tensor();
}

// A typed handle of one of our operators, by its full name.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Chooses and runs an algorithm on the device of `like`.
template <class P>
void run_problem(const P& problem, OptionalPolicy policy, const Tensor& like, Bindings& bindings) {
  execute(problem, resolve_policy(P::kFamily, policy), device_of(like.device()), bindings);
}

// The largest power of two up to 16 that the addresses of all defined tensors keep, in bytes.
int64_t alignment_of(std::initializer_list<const Tensor*> tensors);

// The tensor, or a copy at an address that is a multiple of 16 bytes. cuDNN 9.19, and PyTorch with
// it, accesses some other addresses wrongly, after which the process loses its GPU context.
inline Tensor aligned(const Tensor& t) { return is_aligned(t) ? t : copy_in_layout(t); }
// Replaces what is bound to the roles by `aligned` tensors: on CUDA every role, on the CPU the
// reserve, whose bytes plans read as other types.
void align(Bindings& bindings, std::initializer_list<Role> roles);

// Whether calling a kernel directly does what a call through the dispatcher does: autograd records
// nothing, no tensor has a tangent, and nobody traces, transforms, casts or observes. Undefined
// tensors do not count.
bool is_plain_call(std::initializer_list<const Tensor*> tensors);
// The same, whether or not gradients may be recorded.
bool are_plain_arguments(std::initializer_list<const Tensor*> tensors);

// Calls an operator's kernel, without the dispatcher if that makes no difference.
template <class Kernel, class Op, class... Args>
auto call_directly(std::initializer_list<const Tensor*> tensors, Kernel& kernel, const Op& op,
                   const Args&... args) {
  if (!is_plain_call(tensors)) return op.call(args...);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return kernel(args...);
}

// Calls below it skip the autocast kernels of the device.
struct BelowAutocast : ExcludeKeysGuard {
  explicit BelowAutocast(c10::DeviceType device)
      : ExcludeKeysGuard(at::autocast::get_autocast_dispatch_key_from_device_type(device)) {}
};

inline TensorSpec spec_of(const Tensor& t) { return {t.scalar_type(), t.sizes(), t.strides()}; }

// Whether the elements follow one another without gaps or overlaps, in any order of dimensions.
inline bool is_dense(const Tensor& t) { return t.is_non_overlapping_and_dense(); }

// Raises unless the dtype is float32, float16, bfloat16 or float64.
void check_dtype(const char* op, const char* name, c10::ScalarType dtype);
inline void check_dtype(const char* op, const char* name, const Tensor& t) {
  check_dtype(op, name, t.scalar_type());
}
// Raises unless `t` is on the device of `like`.
void check_device(const char* op, const char* name, const Tensor& t, const char* like_name,
                  const Tensor& like);
// Raises if `t` is on the meta device and `like` is not. One tensor on the meta device is enough
// for a meta kernel to be called.
inline void check_not_meta(const char* op, const char* name, const Tensor& t, const char* like_name,
                           const Tensor& like) {
  if (t.is_meta()) check_device(op, name, t, like_name, like);
}
// Raises unless `t` has the dtype and the device of `like`.
void check_alike(const char* op, const char* name, const Tensor& t, const char* like_name,
                 const Tensor& like);
// Raises unless `t` has the sizes, the dtype and the device of `like`.
void check_same(const char* op, const char* name, const Tensor& t, const char* like_name,
                const Tensor& like);
// Raises unless there is one number for each of the `dims` spatial dimensions, from `least` to the
// largest value of cuDNN's int.
void check_spatial(const char* op, const char* name, SymIntArrayRef values, int64_t dims,
                   int64_t least);
// A dimension of `t`, counted from 0. Raises if there is none of that number.
int64_t check_dim(const char* op, const Tensor& t, int64_t dim);

// Half the distance from 1 to the next larger number.
double epsilon_of(c10::ScalarType dtype);
// The factor by which the number of values enlarges the relative error of a normalisation's
// gradient. `removed` directions are projected out of every `length` values; what is left of a few
// values is mostly rounding.
double conditioning_of_norm(int64_t length, int64_t removed);

// What an autograd node keeps of the policy. A node of a traced graph keeps the argument alone, and
// reads the knobs when it runs, so that today's knobs are not frozen into the graph. An eager node
// keeps the resolved policy, so that backward obeys it on any thread.
std::optional<std::string> policy_to_save(std::string_view family, OptionalPolicy policy);
// A reserve of no bytes, on the device of `like`.
Tensor no_reserve(const Tensor& like);
// The policy of a coupled operator's backward: the one of its forward if the writer of the reserve
// (core/writer.h) says which, else the argument. Raises if either is wrong.
OptionalPolicy policy_of_backward(std::string_view family, std::string_view op,
                                  const OptionalTensor& writer, OptionalPolicy policy);

// --- tensors that may be absent: nullopt in schemas, undefined in autograd's nodes and in kernels

const Tensor& or_undefined(const OptionalTensor& t);
inline bool has(const OptionalTensor& t) { return t && t->defined(); }
inline Tensor contiguous_or_undefined(const OptionalTensor& t) {
  return has(t) ? t->contiguous() : Tensor();
}

}  // namespace torch_cudnn_ext
