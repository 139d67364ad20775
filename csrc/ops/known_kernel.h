// Kernels that take the short way of calls that ran before (core/select/known_calls.h). Knows no
// operator.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/select/known_calls.h"
#include "ops/call.h"
#include "ops/result_list.h"

namespace torch_cudnn_ext {

// The key of a call: all of its arguments but the policy, which comes resolved, and the tensors
// among them.
class CallKey {
 public:
  CallKey(const void* kernel, const ResolvedPolicy& policy) {
    push(reinterpret_cast<intptr_t>(kernel));
    push(policy.id);
  }

  template <class Tied>
  void add_all(const Tied& tied) {
    std::apply([&](const auto&... arguments) { (add(arguments), ...); }, tied);
    if (!tensors_.empty() && tensors_[0]->is_cpu()) push(at::get_num_threads());
    key_.finish();
  }

  // False if an argument has no place in a key.
  bool is_complete() const { return is_complete_ && !tensors_.empty(); }
  const Key& key() const { return key_; }
  c10::ArrayRef<const Tensor*> tensors() const { return tensors_; }  // the defined ones

 private:
  void push(int64_t word) {
    constexpr int kMostWords = 72;
    is_complete_ = is_complete_ && ++count_ <= kMostWords;
    if (is_complete_) key_.push(word);
  }

  void add(const Tensor& t) {
    if (!t.defined()) return push(-1);
    bool is_plain = t.layout() == at::kStrided && (t.is_cpu() || t.is_cuda()) &&
                    !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !t.is_conj() &&
                    !t.is_neg();
    is_complete_ = is_complete_ && is_plain;
    if (!is_plain) return;
    tensors_.push_back(&t);
    c10::IntArrayRef sizes = t.sizes(), strides = t.strides();
    bool in_order = true;  // the strides follow from the sizes
    int64_t numel = 1;
    for (size_t i = sizes.size(); i-- > 0; numel *= sizes[i]) in_order &= strides[i] == numel;
    auto device = static_cast<int64_t>(t.device().type()) << 16 | (t.device().index() & 0xFF);
    push(device << 32 | static_cast<int64_t>(t.scalar_type()) << 24 | t.dim() << 16 |
         int64_t{in_order} << 8 | alignment_of({&t}));
    for (int64_t size : sizes) push(size);
    if (in_order) return;
    for (int64_t stride : strides) push(stride);
  }
  void add(const OptionalTensor& t) { add(or_undefined(t)); }
  void add(at::TensorList list) {
    push(static_cast<int64_t>(list.size()));
    for (const Tensor& t : list) add(t);
  }
  void add(const SymInt& number) {
    std::optional<int64_t> known = number.maybe_as_int();
    is_complete_ = is_complete_ && known;
    push(known.value_or(0));
  }
  void add(SymIntArrayRef list) {
    push(static_cast<int64_t>(list.size()));
    for (const SymInt& number : list) add(number);
  }
  void add(double number) {
    int64_t word = 0;
    std::memcpy(&word, &number, sizeof word);
    push(word);
  }
  void add(std::string_view text) {
    push(static_cast<int64_t>(text.size()));
    for (; !text.empty(); text.remove_prefix(std::min(text.size(), sizeof(int64_t)))) {
      int64_t word = 0;
      std::memcpy(&word, text.data(), std::min(text.size(), sizeof word));
      push(word);
    }
  }
  void add(const OptionalPolicy&) {}
  template <class Number>
  std::enable_if_t<std::is_integral_v<Number> || std::is_enum_v<Number>> add(Number number) {
    push(static_cast<int64_t>(number));
  }
  template <class Number>
  std::enable_if_t<std::is_integral_v<Number> || std::is_enum_v<Number>> add(
      const std::optional<Number>& number) {
    push(number.has_value());
    push(number ? static_cast<int64_t>(*number) : 0);
  }

  Key key_;
  c10::SmallVector<const Tensor*, 6> tensors_;
  int count_ = 0;
  bool is_complete_ = true;
};

// PyTorch's operator on the arguments of a kernel; nullopt if there is none.
template <class Result, class Args>
using PlainKernel = std::optional<Result> (*)(const Args&);

// Notes what results look like. False if they cannot be noted.
inline bool note_forms(KnownCall& known, const Tensor& result) {
  if (!result.defined() || result.dim() > kMaxDims) return false;
  known.forms.emplace_back(result);
  return true;
}
template <class... T>
bool note_forms(KnownCall& known, const std::tuple<T...>& results) {
  return std::apply([&](const auto&... t) { return (note_forms(known, t) && ...); }, results);
}
// Whether results look as noted.
inline bool has_forms(const KnownCall& known, const Tensor& result) {
  return known.forms[0].is_of(result);
}
template <class... T>
bool has_forms(const KnownCall& known, const std::tuple<T...>& results) {
  size_t i = 0;
  return std::apply([&](const auto&... t) { return (known.forms[i++].is_of(t) && ...); }, results);
}

// `kernel` of the arguments, by the short way if there is one. `plain` runs if the algorithm is
// PyTorch's own.
template <class P, class Result, class Args>
Result call_known(Result (*kernel)(const Args&), PlainKernel<Result, Args> plain, const Args& args,
                  OptionalPolicy policy) {
  CallKey key(reinterpret_cast<const void*>(kernel), resolve_policy(P::kFamily, policy));
  key.add_all(args.tied());
  if (!key.is_complete()) return kernel(args);
  if (const KnownCall* known = find_known_call(key.key())) {
    c10::OptionalDeviceGuard guard(key.tensors()[0]->device());
    std::optional<Result> result;
    if (known->leads_to_default) {
      run_known(*known, [&] {
        result = plain(args);
        known->leads_to_default = result && has_forms(*known, *result);
        return known->leads_to_default;
      });
      if (!known->leads_to_default) result.reset();
    }
    if (result) return *std::move(result);
    std::array<Tensor, kResults<Result>> results;
    bool ran = known->leads_to_plan && run_known_plan(*known, key.tensors(), results.data());
    return ran ? from_list<Result>(std::move(results)) : kernel(args);
  }
  ExecutionWatch watch;
  Result result = kernel(args);
  auto learnt = std::make_unique<KnownCall>(key.key());
  if (watch.learn(*learnt, key.tensors(), as_list(result))) {
    bool may_be_plain = plain != nullptr && note_forms(*learnt, result);
    learnt->leads_to_default = learnt->leads_to_default && may_be_plain;
    remember_known_call(std::move(learnt));
  }
  return result;
}

// A kernel over problems of one family that takes the short way. The kernel's result depends on
// its arguments' kinds, and on the values of tensors in no other way than through its plan.
template <class P, auto kernel, auto plain = nullptr>
struct KnownKernel;
template <class P, class Result, class Args, Result (*kernel)(const Args&), auto plain>
struct KnownKernel<P, kernel, plain> {
  static Result call(const Args& args, OptionalPolicy policy) {
    return call_known<P, Result, Args>(kernel, plain, args, policy);
  }
  static Result call(const Args& args) { return call(args, args.policy); }
};

}  // namespace torch_cudnn_ext
