// Every private interface of PyTorch that csrc uses, under a plain name. A comment names the file
// of PyTorch 2.11 in which the interface was read; a new version of PyTorch is checked against
// these files. python_internals.h has what needs Python's headers, and compat.h has the differences
// between versions.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/TracerMode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/cuda/Sleep.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/native/Normalization.h>
#include <ATen/ops/_fw_primal_ops.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_cuda_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cuda_dispatch.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_cuda_dispatch.h>
#include <ATen/ops/avg_pool3d_cpu_dispatch.h>
#include <ATen/ops/avg_pool3d_cuda_dispatch.h>
#include <ATen/ops/convolution_native.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <c10/core/SafePyObject.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <initializer_list>
#include <type_traits>

struct cudnnContext;  // what a cudnnHandle_t points to

namespace at::native {
// aten/src/ATen/native/Normalization.cpp. libtorch_cuda exports it; no header that is installed
// declares it.
size_t _get_cudnn_batch_norm_reserve_space_size(const Tensor& input, bool training);
}  // namespace at::native

namespace torch_cudnn_ext {

// --- Dispatch keys

// c10/core/impl/LocalDispatchKeySet.h: the keys that all calls of this thread include and exclude,
// and guards that exclude further keys or set all of them.
using ThreadKeys = c10::impl::LocalDispatchKeySet;
using ExcludeKeysGuard = c10::impl::ExcludeDispatchKeyGuard;
using SetKeysGuard = c10::impl::ForceDispatchKeyGuard;
inline ThreadKeys thread_keys() { return c10::impl::tls_local_dispatch_key_set(); }

// c10/core/DispatchKeySet.h. The difference of two sets leaves out some keys of backends, so the
// bits are compared.
inline bool has_keys_beyond(c10::DispatchKeySet keys, c10::DispatchKeySet others) {
  return (keys.raw_repr() & ~others.raw_repr()) != 0;
}
// c10/core/DispatchKeySet.h: the keys that a thread includes while nothing is switched on.
constexpr c10::DispatchKeySet kKeysOfEveryThread = c10::default_included_set;

// c10/core/DispatchKey.h: the keys of tensors that transforms of torch.func wrap, and of tensors
// that vmap wraps, the former vmap included.
constexpr c10::DispatchKeySet kFuncTransformKeys({c10::DispatchKey::FuncTorchBatched,
                                                  c10::DispatchKey::FuncTorchGradWrapper});
constexpr c10::DispatchKeySet kBatchedKeys({c10::DispatchKey::FuncTorchBatched,
                                            c10::DispatchKey::Batched});
// c10/core/DispatchKey.h: the keys that a thread includes inside vmap.
constexpr c10::DispatchKeySet kVmapModeKeys({c10::DispatchKey::VmapMode,
                                             c10::DispatchKey::FuncTorchVmapMode});

// ATen/functorch/BatchedTensorImpl.h: the level of the vmap that wraps a tensor; 0 if none does.
inline int64_t vmap_level_of(const at::Tensor& t) {
  auto* batched = at::functorch::maybeGetBatchedImpl(t);
  return batched == nullptr ? 0 : batched->level();
}

// --- Who follows operators

// c10/core/impl/TorchDispatchModeTLS.h: whether any mode of Python is on in this thread.
inline bool has_dispatch_mode() { return c10::impl::TorchDispatchModeTLS::any_modes_set(); }

// c10/core/impl/TorchDispatchModeTLS.h: whether this thread traces for torch.compile, torch.export
// or fake tensors, and follows operators instead of computing with them.
inline bool is_tracing() {
  using c10::impl::TorchDispatchModeKey;
  for (auto key : {TorchDispatchModeKey::FAKE, TorchDispatchModeKey::PROXY,
                   TorchDispatchModeKey::FUNCTIONAL}) {
    if (c10::impl::TorchDispatchModeTLS::get_mode(key)) return true;
  }
  return false;
}

// torch/csrc/jit/frontend/tracer.h: whether torch.jit.trace runs in this thread.
inline bool is_jit_tracing() { return torch::jit::tracer::isTracing(); }
// ATen/TracerMode.h: whether torch.jit.trace records the calls of operators now.
inline bool does_jit_trace_record() { return at::tracer::impl::is_dispatch_enabled(); }

// ATen/record_function.h: whether a profiler or another observer sees calls of operators.
inline bool are_operators_observed() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

// --- State of a thread

// c10/core/SafePyObject.h and ATen/ThreadLocalPythonObjects.h: objects by their keys. PyTorch
// passes them on to the threads of autograd that work for this thread. The object's constructor
// takes a Python object and its interpreter; both may be nullptr.
using ThreadObject = c10::SafePyObject;
using ThreadObjects = at::impl::ThreadLocalPythonObjects;

// ATen/SavedTensorHooks.h: the user's hooks on tensors that autograd saves.
using SavedTensorHooks = at::SavedTensorDefaultHooks;
using SavedTensorHooksState = at::impl::SavedTensorDefaultHooksTLS;

// c10/core/impl/VirtualGuardImpl.h: the current device of a type.
inline c10::Device current_device_of(c10::DeviceType type) {
  return c10::impl::VirtualGuardImpl(type).getDevice();
}

// --- Autograd

// torch/csrc/autograd/function.h, edge.h and saved_variable.h: nodes, and what they hold.
using AutogradNode = torch::autograd::Node;
using torch::autograd::collect_next_edges;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::SavedVariable;
using torch::autograd::TraceableFunction;
using torch::autograd::variable_list;

// torch/csrc/autograd/function.h: whether a node of autograd runs in this thread.
inline bool is_in_autograd_node() { return torch::autograd::get_current_node() != nullptr; }

// torch/csrc/autograd/variable.h: where a tensor's gradient goes.
inline Edge gradient_edge(const at::Tensor& t) { return torch::autograd::impl::gradient_edge(t); }

// torch/csrc/autograd/functions/utils.h and VariableTypeUtils.h: what PyTorch's own kernels of
// autograd do before and after they call the kernel below.
using torch::autograd::check_inplace;
using torch::autograd::compute_requires_grad;
using torch::autograd::increment_version;
using torch::autograd::rebase_history;
using torch::autograd::set_history;

// ATen/core/TensorBody.h and ATen/ops/_fw_primal_ops.h: tangents of forward-mode AD, which has one
// level, and the value without the tangent.
constexpr uint64_t kTangentLevel = 0;
inline at::Tensor tangent_of(const at::Tensor& t) { return t._fw_grad(kTangentLevel); }
inline bool has_tangent(const at::Tensor& t) { return t.defined() && tangent_of(t).defined(); }
inline at::Tensor primal_of(const at::Tensor& t) {
  return has_tangent(t) ? at::_ops::_fw_primal::call(t, kTangentLevel) : t;
}
inline void set_tangent(const at::Tensor& t, const at::Tensor& tangent) {
  t._set_fw_grad(tangent, kTangentLevel, /*is_inplace_op=*/false);
}

// torch/csrc/dynamo/compiled_autograd.h: compiled autograd, which asks each node for its tensors
// and attributes.
using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::PackedArgs;
using torch::dynamo::autograd::SwapSavedVariables;
// torch/csrc/autograd/function.h
using PackedGradient = torch::dynamo::autograd::functional_apply_t;

// torch/csrc/dynamo/compiled_autograd.h: records a call of a node's gradient, as a function of what
// it reads, in the graph that compiled autograd makes. The shapes of gradients are not known then.
variable_list call_in_graph(const AutogradNode& node, SwapSavedVariables& swap,
                            PackedGradient gradient, const variable_list& grads,
                            const PackedArgs& args);

// --- Kernels

// ATen/core/boxing/KernelFunction.h and ATen/core/dispatch/Dispatcher.h: the kernel of an operator
// at a key. It stays the same if another one is registered later.
using RegisteredKernel = c10::SafeKernelFunction;
inline RegisteredKernel registered_kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return op.getComputedKernelForDispatchKey(key);
}
// ATen/core/boxing/impl/boxing.h: calls such a kernel. `Args` are the types in its signature.
template <class R, class... Args>
R call_registered(const RegisteredKernel& kernel, c10::DispatchKeySet keys,
                  std::add_lvalue_reference_t<Args>... args) {
  torch::jit::Stack stack = c10::impl::boxArgs<Args...>(args...);
  kernel.callBoxed(kernel.opHandle(), keys, &stack);
  return c10::impl::PopResult<R>::call(stack);
}

// PyTorch's own kernels, which are called without the dispatcher.
namespace pytorch_kernels {
// ATen/ops/*_native.h
using at::native::as_strided_tensorimpl;
using at::native::convolution;
using at::native::gru;
using at::native::lstm;
using at::native::rnn_relu;
using at::native::rnn_tanh;
using at::native::view;

// ATen/native/Normalization.h: which kernels batch norm takes, and how many bytes those of cuDNN
// save for the backward.
using at::native::_get_cudnn_batch_norm_reserve_space_size;
using at::native::_select_batch_norm_backend;
using at::native::BatchNormBackend;

// ATen/ops/*_cpu_dispatch.h and *_cuda_dispatch.h
namespace cpu {
using at::cpu::_log_softmax;
using at::cpu::_softmax;
using at::cpu::avg_pool2d;
using at::cpu::avg_pool3d;
}  // namespace cpu
namespace cuda {
using at::cuda::_log_softmax;
using at::cuda::_softmax;
using at::cuda::avg_pool2d;
using at::cuda::avg_pool3d;
}  // namespace cuda
}  // namespace pytorch_kernels

// --- CUDA and cuDNN

// ATen/cuda/EmptyTensor.h: a new tensor, made without the dispatcher.
inline at::Tensor empty_strided_on_cuda(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                        c10::ScalarType dtype, c10::Device device) {
  return at::detail::empty_strided_cuda(sizes, strides, dtype, device);
}

// ATen/cuda/Sleep.h: occupies the GPU for so many cycles, on the current stream.
inline void occupy_gpu(int64_t cycles) { at::cuda::sleep(cycles); }

// ATen/cudnn/Handle.h: PyTorch's handle of cuDNN for the current device, set to the current stream.
cudnnContext* current_cudnn_handle();

}  // namespace torch_cudnn_ext
