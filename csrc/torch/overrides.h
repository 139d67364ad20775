// The table of PyTorch's operators that ours replace while enable() is on. Each ops/<family>/ adds
// its own operators. Names no operator.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/override_guard.h"
#include "torch/compiled_graphs.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

// PyTorch's own kernel of an operator at a key, as it was before the override.
using FormerKernel = std::optional<RegisteredKernel>;

struct Override {
  std::string op;  // of namespace aten, with its overload: "convolution", "lstm.input"
  c10::DispatchKey key;
  torch::CppFunction (*kernel)();
  FormerKernel* former;
};
void add_override(Override override);

// enable_overrides registers all overrides, and throws if they are registered. disable_overrides
// removes them, and throws if they are not registered.
void enable_overrides(CompiledUse compiled);
void disable_overrides();
bool overrides_enabled();
std::vector<std::string> overridden_ops();

// Calls that went to PyTorch's own kernel, by "operator: reason".
void count_declined(const char* op, const std::string& reason);
std::map<std::string, int64_t> declined();
void reset_declined();

// Why a call with this tensor is declined: no operator of ours takes it. nullopt if one may.
std::optional<std::string> why_tensor_is_declined(c10::DispatchKeySet keys, const char* name,
                                                  const at::Tensor& t);
// The same for several tensors, for operators that do not have forward-mode AD.
struct NamedTensor {
  const char* name;
  const at::Tensor& t;
};
std::optional<std::string> why_any_is_declined(c10::DispatchKeySet keys,
                                               std::initializer_list<NamedTensor> tensors);
// Why a norm with these parameters and statistics is declined; nullopt if each has the dtype of the
// input, or the dtype that the norm computes in.
std::optional<std::string> why_dtypes_are_declined(const at::Tensor& input,
                                                   std::initializer_list<NamedTensor> tensors);

// The text of a ValueError; nullopt for any other error. While a fake tensor mode is on
// (torch.compile), our operators are called through Python, and their ValueError arrives as a
// Python exception.
std::optional<std::string> value_error_text(std::exception& error);

// `Ours` replaces one operator of PyTorch's. `Signature` is that operator's, without the keys.
// `Ours` has
//   static constexpr const char* kOp;
//   static std::optional<std::string> why_declined(keys, args...)   why the call is declined, so
//   that
//                                                              PyTorch's own kernel runs
//   static R with_autograd(keys, args...)                      called at autograd's keys
// PyTorch has kernels of a basic operator below autograd's keys, at the backends' keys, where
// inference mode begins. `Ours` then also has
//   static R run(args...)                                      called at the backends' keys
//   template <c10::DispatchKey key> static R plain(args...)    PyTorch's own kernel
// A composite is made of other operators. with_autograd is called at every key.
// An operator that is overridden below autograd alone has run() and neither with_autograd nor
// plain. A call is also declined if ours raise a ValueError. PyTorch's own kernel then runs the
// call, or raises an error of its own. `Ours` may have
//   static constexpr InGraphs kInGraphs                        its part in compiled graphs
enum class OpKind : uint8_t { basic, composite, below_autograd };

template <class Ours, class = void>
constexpr InGraphs kPartInGraphs = InGraphs::left;
template <class Ours>
constexpr InGraphs kPartInGraphs<Ours, std::void_t<decltype(Ours::kInGraphs)>> = Ours::kInGraphs;

template <class Ours, OpKind kind, c10::DispatchKey key, class Signature>
struct OverrideKernel;

template <class Ours, OpKind kind, c10::DispatchKey key, class R, class... Args>
struct OverrideKernel<Ours, kind, key, R(Args...)> {
  static constexpr bool kAutograd =
      key == c10::DispatchKey::AutogradCPU || key == c10::DispatchKey::AutogradCUDA;
  static constexpr bool kComposite = kind == OpKind::composite;
  static inline FormerKernel former;

  static R call(c10::DispatchKeySet keys, Args... args) {
    if (OverrideGuard::is_on() || CompiledGraphs::leaves(kPartInGraphs<Ours>)) {
      return plain(keys, args...);
    }
    if (std::optional<std::string> reason = Ours::why_declined(keys, args...)) {
      count_declined(Ours::kOp, *reason);
      return plain(keys, args...);
    }
    try {
      if constexpr (kAutograd) {
        return Ours::with_autograd(keys, args...);
      } else if constexpr (kComposite) {
        at::NoGradGuard below_autograd;
        return Ours::with_autograd(keys, args...);
      } else {
        return Ours::run(args...);
      }
    } catch (std::exception& error) {
      std::optional<std::string> reason = value_error_text(error);
      if (!reason) throw;
      count_declined(Ours::kOp, *reason);
    }
    return plain(keys, args...);
  }

  static R plain(c10::DispatchKeySet keys, Args... args) {
    OverrideGuard guard;
    if constexpr (kAutograd || kind != OpKind::basic) {
      return call_registered<R, Args...>(*former, keys, args...);
    } else {
      return Ours::template plain<key>(args...);
    }
  }

  static torch::CppFunction kernel() { return torch::CppFunction(TORCH_FN(call)); }
};

// Registers an override at the backends' keys, and at autograd's keys, so that backward is ours
// too, unless it is overridden below autograd alone.
template <class Ours, class Signature, OpKind kind = OpKind::basic>
struct RegisterOverride {
  explicit RegisterOverride(const char* op) {
    if constexpr (kind != OpKind::below_autograd) {
      add<c10::DispatchKey::AutogradCPU>(op);
      add<c10::DispatchKey::AutogradCUDA>(op);
    }
    add<c10::DispatchKey::CPU>(op);
    add<c10::DispatchKey::CUDA>(op);
  }

 private:
  template <c10::DispatchKey key>
  static void add(const char* op) {
    using Kernel = OverrideKernel<Ours, kind, key, Signature>;
    add_override({op, key, &Kernel::kernel, &Kernel::former});
  }
};
template <class Ours, class Signature>
using RegisterOverrideOfComposite = RegisterOverride<Ours, Signature, OpKind::composite>;
template <class Ours, class Signature>
using RegisterOverrideBelowAutograd = RegisterOverride<Ours, Signature, OpKind::below_autograd>;

}  // namespace torch_cudnn_ext
