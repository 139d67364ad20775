// The autograd node of every operator: saved tensors, attributes, and a function that computes
// gradients from them. Knows no family. The nodes do not use torch::autograd::Function, which
// functorch does not support and which is slower.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/autograd_guard.h"
#include "core/writer.h"
#include "ops/arguments.h"
#include "ops/result_list.h"
#include "torch/compat.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

using at::TensorList;
// Tensors by reference: a copy counts references, which costs time.
using TensorRef = std::reference_wrapper<const Tensor>;
// Which gradients are wanted. Lists that every call makes are inline, since allocation costs time.
using Needed = c10::SmallVector<bool, 8>;

// `Gradient` describes one operator:
//   static constexpr const char* kName  the node's name
//   static constexpr size_t kInputs     how many inputs may need a gradient, or kAny
//   (attributes, as members)
//   auto attributes()                   std::tie of them
//   variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed)
//                                       the gradients of the inputs, undefined if not needed; calls
//                                       operators through the dispatcher, so that gradients have
//                                       gradients
// and may have
//   static constexpr bool kForwardMode  present if the operator has forward-mode derivatives
//   bool retain_variables               whether backward may run again
//   static bool reads(size_t saved, const Needed& needed)
//                                       whether `apply` reads this saved tensor; it is undefined if
//                                       not
//   Tensor remade(TensorList before)    computes again a saved result that was changed in place,
//                                       from the tensors saved before it; undefined if impossible
constexpr size_t kAny = 0;

template <class Gradient, template <class> class Member, class = void>
inline constexpr bool has_member = false;
template <class Gradient, template <class> class Member>
inline constexpr bool has_member<Gradient, Member, std::void_t<Member<Gradient>>> = true;

template <class Gradient>
using ForwardMode = decltype(Gradient::kForwardMode);
template <class Gradient>
using RetainVariables = decltype(Gradient::retain_variables);
template <class Gradient>
using Reads = decltype(&Gradient::reads);
template <class Gradient>
using Remade = decltype(&Gradient::remade);

template <class Gradient, class Visit>
void each_attribute(Gradient& gradient, Visit&& visit) {
  std::apply([&](auto&... items) { (visit(items), ...); }, gradient.attributes());
}

// An attribute in a type that compiled autograd packs, and back.
template <class T>
decltype(auto) packable(const T& attribute) {
  if constexpr (std::is_same_v<T, c10::SymDimVector>) {
    return std::vector<SymInt>(attribute.begin(), attribute.end());
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<int64_t>(attribute);
  } else {
    return (attribute);  // a reference
  }
}
template <class T>
void unpack_attribute(PackedArgs& args, T& attribute) {
  auto value = args.unpack<std::decay_t<decltype(packable(attribute))>>();
  if constexpr (std::is_same_v<T, c10::SymDimVector>) {
    attribute.assign(value.begin(), value.end());
  } else {
    attribute = static_cast<T>(std::move(value));
  }
}

// Turns autocast off. As in PyTorch, a gradient has the dtype of its input even if backward() is
// called under autocast.
struct NoAutocastGuard : ExcludeKeysGuard {
  NoAutocastGuard() : ExcludeKeysGuard(c10::autocast_dispatch_keyset) {}
};

template <class Gradient>
struct GradientNode : public TraceableFunction {
  using TraceableFunction::TraceableFunction;

  Gradient gradient;
  c10::SmallVector<SavedVariable, 6> saved;
  c10::SmallVector<bool, 6> is_result;  // for each saved tensor

  std::string name() const override { return Gradient::kName; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& variable : saved) variable.reset_data();
  }

  void will_release_variables() override {
    if constexpr (has_member<Gradient, RetainVariables>) gradient.retain_variables = false;
  }

  variable_list apply(variable_list&& grads) override {
    if (!any_defined(grads)) return variable_list(num_outputs());
    Needed wanted = needed();
    auto tensors = unpacked(wanted);  // a user's hooks run under the user's autocast
    NoAutocastGuard no_autocast;
    return gradient.apply(grads, tensors, wanted);
  }

  static bool any_defined(const variable_list& grads) {
    return std::any_of(grads.begin(), grads.end(), [](const Tensor& t) { return t.defined(); });
  }

  Needed needed() {
    Needed wanted;
    for (size_t i = 0; i < num_outputs(); ++i) wanted.push_back(task_should_compute_output(i));
    return wanted;
  }

  c10::SmallVector<Tensor, 6> unpacked(const Needed& wanted) {
    c10::SmallVector<Tensor, 6> tensors;
    std::lock_guard<std::mutex> lock(mutex_);  // another thread may release what is read here
    for (size_t i = 0; i < saved.size(); ++i) {
      bool is_read = true;
      if constexpr (has_member<Gradient, Reads>) is_read = Gradient::reads(i, wanted);
      tensors.push_back(is_read ? unpack(i, tensors) : Tensor());
    }
    return tensors;
  }

  Tensor unpack(size_t i, TensorList before) {
    if constexpr (has_member<Gradient, Remade>) {
      try {
        return saved[i].unpack(pointer_to(*this));
      } catch (const c10::Error&) {
        Tensor again = is_result[i] ? gradient.remade(before) : Tensor();
        if (!again.defined()) throw;
        return again;
      }
    }
    return saved[i].unpack(pointer_to(*this));
  }

  void compiled_args(CompiledNodeArgs& args) const override {
    for (size_t i = 0; i < saved.size(); ++i) args.collect(saved[i], is_result[i]);
    each_attribute(const_cast<Gradient&>(gradient),
                   [&](const auto& item) { args.collect(packable(item)); });
  }

  // Visits the attributes that are symbols while a graph is compiled.
  template <class Visit>
  void each_symbolic(Visit&& visit) {
    each_attribute(gradient, [&](auto& item) {
      using T = std::decay_t<decltype(item)>;
      if constexpr (std::is_same_v<T, SymInt> || std::is_same_v<T, std::vector<SymInt>> ||
                    std::is_same_v<T, c10::SymDimVector>) {
        visit(item);
      }
    });
  }

  variable_list apply_with_saved(const variable_list& grads, SwapSavedVariables& swap) override {
    for (auto& variable : saved) swap.before(variable);
    each_symbolic([&](auto& item) { swap.before(item); });
    PackedArgs args;
    each_attribute(gradient, [&](auto& item) { args.pack(packable(item)); });
    Needed wanted = needed();
    args.pack(std::vector<bool>(wanted.begin(), wanted.end()));
    auto tensors = unpacked(wanted);
    args.pack(variable_list(tensors.begin(), tensors.end()));
    variable_list result = call_in_graph(*this, swap, apply_packed, grads, args);
    for (auto& variable : saved) swap.after(variable);
    each_symbolic([&](auto& item) { swap.after(item); });
    return result;
  }

  static variable_list apply_packed(const variable_list& grads,
                                    const std::vector<c10::IValue>& packed) {
    PackedArgs args(packed);
    Gradient gradient;
    each_attribute(gradient, [&](auto& item) { unpack_attribute(args, item); });
    auto wanted = args.unpack<std::vector<bool>>();
    auto tensors = args.unpack<variable_list>();
    if (!any_defined(grads)) return variable_list(wanted.size());
    NoAutocastGuard no_autocast;
    return gradient.apply(grads, tensors, Needed(wanted.begin(), wanted.end()));
  }
};

// Runs an operator below autograd and records its node.
//   inputs          tensors, in the order of the gradients; may be undefined
//   run             () -> a tensor or a tuple of tensors, which is the result; called with
//                   autograd's keys excluded
//   record          (node, results) -> void: fills node->gradient and node->saved (use save_input
//                   and save_result) from a list of the results; called after `run` and only if a
//                   gradient is wanted
//   differentiable  how many of the leading results have gradients
//   save_first      (node) -> void: saves inputs before `run`, as PyTorch's operators do. A hook
//                   that raises then leaves nothing changed, and torch.utils.checkpoint need not
//                   rerun an operator that saves only inputs.
struct SaveNothingFirst {
  template <class Node>
  void operator()(Node&) const {}
};
template <class Gradient, class Run, class Record, class SaveFirst = SaveNothingFirst>
auto run_with_gradient(c10::ArrayRef<TensorRef> inputs, size_t differentiable, Run&& run,
                       Record&& record, SaveFirst&& save_first = {}) {
  using Results = decltype(run());
  using Node = GradientNode<Gradient>;
  TORCH_INTERNAL_ASSERT(Gradient::kInputs == kAny || inputs.size() == Gradient::kInputs);
  bool wanted = false;
  for (const Tensor& t : inputs) {
    wanted |= t.defined() && t.requires_grad();
    if constexpr (!has_member<Gradient, ForwardMode>) {
      TORCH_CHECK_NOT_IMPLEMENTED(!has_tangent(t), Gradient::kName,
                                  ": forward-mode AD is not supported by this operator");
    }
  }
  wanted = wanted && at::GradMode::is_enabled();
  NodePtr<Node> node;
  if (wanted) {
    node = make_node<Node>();
    edge_list edges;
    edges.reserve(inputs.size());
    for (const Tensor& t : inputs) edges.push_back(t.defined() ? gradient_edge(t) : Edge());
    node->set_next_edges(std::move(edges));
    save_first(*node);
  }
  Results given = [&] {
    at::AutoDispatchBelowADInplaceOrView guard;
    return run();
  }();
  if (!node) return given;
  auto results = as_list(std::move(given));
  for (size_t i = 0; i < differentiable; ++i) {
    if (results[i].defined()) set_history(results[i], node);
  }
  record(*node, results);
  return from_list<Results>(std::move(results));
}

template <class Node, class... T>
void save_input(Node& node, const T&... tensors) {
  (node.saved.emplace_back(tensors, false), ...);
  node.is_result.resize(node.saved.size(), false);
}
template <class Node>
void save_result(Node& node, const Tensor& t) {
  node.saved.emplace_back(t, true);
  node.is_result.push_back(true);
}

// Stores in the node of a coupled operator's forward what ran. That is the policy that the writer
// names, or the writer itself if it names none yet, as in a graph being traced. `writer` may be
// undefined.
template <class Node>
void save_writer(Node& node, std::string_view op, std::string_view family, OptionalPolicy policy,
                 const Tensor& writer) {
  bool says = writer.defined() && !is_tracing();
  OptionalPolicy ran = says ? policy_of_writer(op, writer) : std::nullopt;
  node.gradient.policy = ran ? std::string(*ran) : policy_to_save(family, policy);
  save_input(node, ran ? Tensor() : writer);
}

// Whether a transform of torch.func wraps the tensor. A wrapped tensor shows contiguous strides.
inline bool is_transformed(const Tensor& t) {
  return t.key_set().has_any(kFuncTransformKeys | kBatchedKeys);
}

// A parameter's gradient. It gets the parameter's strides if the two differ only in dimensions of
// size 1: DistributedDataParallel warns and copies at each step unless the strides are equal.
Tensor with_strides_of_parameter(Tensor gradient, SymIntArrayRef strides);

// A variable of this value to differentiate by. It is detached from the history of `t`, unless the
// gradient is itself to be differentiated.
Tensor variable_of(const Tensor& t, bool create_graph);

// The gradients of a backward operator, found by differentiating a formula of it in ATen operators.
// The formula takes `inputs` and gives the tensors whose gradients are `grads`. A gradient that is
// not needed is undefined.
using Formula = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;
variable_list gradients_of_formula(const Formula& formula, TensorList inputs,
                                   const variable_list& grads, const Needed& needed);

}  // namespace torch_cudnn_ext
