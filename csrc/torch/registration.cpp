#include "torch/registration.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

// Each family defines its schemas, as fragments of this library, next to its code.
TORCH_LIBRARY(torch_cudnn_ext, m) {}

namespace torch_cudnn_ext {
namespace {

bool writes(const c10::Argument& argument) {
  const c10::AliasInfo* alias = argument.alias_info();
  return alias != nullptr && alias->isWrite();
}

// Calls the operator on tensors whose values are written out, and copies back what it wrote.
template <c10::DispatchKey key>
void call_on_plain(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  size_t begin = stack->size() - arguments.size();
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[begin + i];
    if (!value.isTensor()) continue;
    at::Tensor lazy = value.toTensor();
    if (!lazy.defined() || !lazy.key_set().has(key)) continue;
    at::Tensor plain = key == c10::DispatchKey::Negative ? lazy.resolve_neg() : lazy.resolve_conj();
    if (writes(arguments[i])) written.emplace_back(lazy, plain);
    value = plain;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
  for (auto& [lazy, plain] : written) lazy.copy_(plain);
}

// PyTorch's own fallback copies the first result into the argument that is written; none of these
// operators returns it.
template <c10::DispatchKey key>
void register_writers() {
  static torch::Library library(torch::Library::IMPL, "torch_cudnn_ext", key, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "torch_cudnn_ext") continue;
    auto op = dispatcher.findSchema(name);
    if (!op) continue;  // implemented, but not defined
    const auto& arguments = op->schema().arguments();
    if (std::none_of(arguments.begin(), arguments.end(), writes)) continue;
    library.impl(name.name.c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&call_on_plain<key>>());
  }
}

}  // namespace

void register_kernels_of_writers() {
  register_writers<c10::DispatchKey::Negative>();
  register_writers<c10::DispatchKey::Conjugate>();
}

}  // namespace torch_cudnn_ext
