// What all operators do with their arguments, and how exact results of theirs can be.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymIntArrayRef.h>

#include <initializer_list>
#include <optional>
#include <string_view>

#include "core/operator.h"
#include "core/policy/resolve.h"
#include "core/tensors.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

using at::Tensor;
using c10::SymInt;
using c10::SymIntArrayRef;
using OptionalTensor = std::optional<Tensor>;
using OptionalPolicy = std::optional<std::string_view>;

// The elements of a dense tensor, which may be undefined, in the order of memory.
inline Tensor flat(const Tensor& t) {
  return t.defined() ? t.as_strided({t.numel()}, {1}) : Tensor();
}

// A typed handle of one of our operators, by its full name.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// The largest power of two up to 16 that the addresses of all defined tensors keep, in bytes.
int64_t alignment_of(std::initializer_list<const Tensor*> tensors);

// The tensor, or a copy at an address that is a multiple of 16 bytes. Where cuDNN 9.19, and PyTorch
// with it, accesses other addresses wrongly, the process loses its GPU context.
Tensor aligned(const Tensor& t);
// Makes what is bound to the roles `aligned`: on CUDA all of it, on the CPU the reserve, whose
// bytes plans read as other types.
void align(Bindings& bindings, std::initializer_list<Role> roles);

// Whether calling a kernel directly does what a call through the dispatcher does: no gradient is
// recorded, none has a tangent, and nobody traces, transforms, casts or observes. Undefined tensors
// do not count.
bool is_plain_call(std::initializer_list<const Tensor*> tensors);

// Calls an operator's kernel, without the dispatcher where that makes no difference.
template <class Kernel, class Op, class... Args>
auto call_directly(std::initializer_list<const Tensor*> tensors, Kernel& kernel, const Op& op,
                   const Args&... args) {
  if (!is_plain_call(tensors)) return op.call(args...);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return kernel(args...);
}

// A tensor's dtype, sizes and strides.
TensorSpec spec_of(const Tensor& t);

// Whether the elements lie side by side without gaps or overlaps, in whatever order of dimensions.
bool is_dense(const Tensor& t);

// Raises unless the dtype is float32, float16, bfloat16 or float64.
void check_dtype(const char* op, const char* name, const Tensor& t);
// Raises unless `t` has the device of `like`; its dtype and device; its sizes, dtype and device.
void check_device(const char* op, const char* name, const Tensor& t, const char* like_name,
                  const Tensor& like);
// Where one tensor on the meta device is enough to get there.
inline void check_not_meta(const char* op, const char* name, const Tensor& t, const char* like_name,
                           const Tensor& like) {
  if (t.is_meta()) check_device(op, name, t, like_name, like);
}
void check_alike(const char* op, const char* name, const Tensor& t, const char* like_name,
                 const Tensor& like);
void check_same(const char* op, const char* name, const Tensor& t, const char* like_name,
                const Tensor& like);
// Raises unless there are as many numbers as dimensions of space, each from `least` to what cuDNN's
// int holds.
void check_spatial(const char* op, const char* name, SymIntArrayRef values, int64_t dims,
                   int64_t least);

// Half the distance from 1 to the next larger number.
double epsilon_of(c10::ScalarType dtype);
// How much of the relative error of a normalisation's gradient its size makes. `removed` directions
// are projected out of every `length` values: of what is left of few, most is rounding.
double conditioning_of_norm(int64_t length, int64_t removed);

// Whether a mode of PyTorch's own is on, whose tensors stand for others. A user's, such as one that
// counts operations, runs them here and now.
bool is_tracing();

// What an autograd node keeps of the policy. Under a tracer the knobs of today must not be frozen
// into the graph: it keeps the argument alone, and reads them when it runs. An eager node keeps
// what was resolved, so that backward obeys it on any thread.
std::optional<std::string> policy_to_save(std::string_view family, OptionalPolicy policy);
// A reserve of no bytes, on the device of `like`.
Tensor no_reserve(const Tensor& like);
// The policy of a coupled operator's backward: that of its forward, if the writer of the reserve
// (core/writer.h) says which; else the argument. Raises if either is wrong.
OptionalPolicy policy_of_backward(std::string_view family, std::string_view op,
                                  const OptionalTensor& writer, OptionalPolicy policy);

// --- tensors that may be absent: nullopt in schemas, undefined in autograd's nodes and in kernels

const Tensor& or_undefined(const OptionalTensor& t);
inline bool has(const OptionalTensor& t) { return t && t->defined(); }
Tensor contiguous_or_undefined(const OptionalTensor& t);

}  // namespace torch_cudnn_ext
