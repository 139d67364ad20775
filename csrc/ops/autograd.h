// The autograd node of every operator: saved tensors, attributes, and a function that computes
// gradients from them. A raw node, since torch::autograd::Function is refused by functorch and
// slower.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/autograd_guard.h"
#include "core/select/execute.h"
#include "core/writer.h"
#include "ops/arguments.h"

namespace torch_cudnn_ext {

using at::TensorList;
using torch::autograd::variable_list;
// Tensors that stay where they are: every copy counts references, which costs time.
using TensorRef = std::reference_wrapper<const Tensor>;
// Which gradients are wanted. Short lists that every call makes are inline: memory costs time.
using Needed = c10::SmallVector<bool, 8>;

// `Gradient` describes one operator:
//   static constexpr const char* kName;            the node's name
//   static constexpr size_t kInputs;               how many inputs may need a gradient, or kAny
//   (attributes, as members)
//   template <class F> void attributes(F&& visit)  visits each member that is an attribute
//   variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed)
//   (bool retain_variables, where it is a member: whether backward may be asked for once more)
//   (static bool reads(size_t saved, const Needed& needed), where it is a member: whether `apply`
//   reads the saved one; undefined where not)
//   (static constexpr bool kForwardMode = true: the operator has forward-mode derivatives)
//   (Tensor remade(TensorList before), where it is a member: the saved result, which was changed in
//   place, computed anew from what was saved before it; undefined where it cannot be)
// `apply` gives as many gradients, undefined where they are not needed; it calls operators through
// the dispatcher, so that gradients have gradients.
constexpr size_t kAny = 0;

template <class Gradient, class = void>
struct KnowsRetention : std::false_type {};
template <class Gradient>
struct KnowsRetention<Gradient, std::void_t<decltype(Gradient::retain_variables)>>
    : std::true_type {};

template <class Gradient, class = void>
struct Remakes : std::false_type {};
template <class Gradient>
struct Remakes<Gradient, std::void_t<decltype(&Gradient::remade)>> : std::true_type {};

template <class Gradient, class = void>
struct Selects : std::false_type {};
template <class Gradient>
struct Selects<Gradient, std::void_t<decltype(&Gradient::reads)>> : std::true_type {};

template <class Gradient, class = void>
struct HasForwardMode : std::false_type {};
template <class Gradient>
struct HasForwardMode<Gradient, std::void_t<decltype(Gradient::kForwardMode)>> : std::true_type {};

using torch::dynamo::autograd::PackedArgs;
using torch::dynamo::autograd::SwapSavedVariables;

// An attribute in the key of a compiled graph; one among what a gradient reads, and back.
template <class T>
void collect_attribute(torch::dynamo::autograd::CompiledNodeArgs& args, const T& attribute) {
  if constexpr (std::is_same_v<T, c10::SymDimVector>) {
    args.collect(SymIntArrayRef(attribute));
  } else if constexpr (std::is_enum_v<T>) {
    args.collect(static_cast<int64_t>(attribute));
  } else {
    args.collect(attribute);
  }
}
template <class T>
void pack_attribute(PackedArgs& args, const T& attribute) {
  if constexpr (std::is_same_v<T, c10::SymDimVector>) {
    args.pack(std::vector<SymInt>(attribute.begin(), attribute.end()));
  } else if constexpr (std::is_enum_v<T>) {
    args.pack(static_cast<int64_t>(attribute));
  } else {
    args.pack(attribute);
  }
}
template <class T>
void unpack_attribute(PackedArgs& args, T& attribute) {
  if constexpr (std::is_same_v<T, c10::SymDimVector>) {
    auto values = args.unpack<std::vector<SymInt>>();
    attribute.assign(values.begin(), values.end());
  } else if constexpr (std::is_enum_v<T>) {
    attribute = static_cast<T>(args.unpack<int64_t>());
  } else {
    attribute = args.unpack<T>();
  }
}

// Has compiled autograd call a node's gradient, as a function of what it reads, in the graph that
// it makes: while it does, nobody knows the shapes of gradients.
variable_list call_in_graph(const torch::autograd::Node& node, SwapSavedVariables& swap,
                            torch::dynamo::autograd::functional_apply_t gradient,
                            const variable_list& grads, const PackedArgs& args);

// Gradients have the types of what they are of, wherever backward() is called, as PyTorch's have.
struct NoAutocastGuard : c10::impl::ExcludeDispatchKeyGuard {
  NoAutocastGuard() : ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset) {}
};

template <class Gradient>
struct GradientNode : public torch::autograd::TraceableFunction {
  using TraceableFunction::TraceableFunction;

  Gradient gradient;
  c10::SmallVector<torch::autograd::SavedVariable, 6> saved;
  c10::SmallVector<bool, 6> is_result;  // of each saved one

  std::string name() const override { return Gradient::kName; }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& variable : saved) variable.reset_data();
  }

  void will_release_variables() override {
    if constexpr (KnowsRetention<Gradient>::value) gradient.retain_variables = false;
  }

  variable_list apply(variable_list&& grads) override {
    if (!any_defined(grads)) return variable_list(num_outputs());
    Needed wanted = needed();
    auto tensors = unpacked(wanted);  // hooks of a user's hear of autocast
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
      if constexpr (Selects<Gradient>::value) is_read = Gradient::reads(i, wanted);
      tensors.push_back(is_read ? unpack(i, tensors) : Tensor());
    }
    return tensors;
  }

  Tensor unpack(size_t i, TensorList before) {
    if constexpr (Remakes<Gradient>::value) {
      try {
        return saved[i].unpack(shared_from_this());
      } catch (const c10::Error&) {
        Tensor again = is_result[i] ? gradient.remade(before) : Tensor();
        if (!again.defined()) throw;
        return again;
      }
    }
    return saved[i].unpack(shared_from_this());
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    for (size_t i = 0; i < saved.size(); ++i) args.collect(saved[i], is_result[i]);
    const_cast<Gradient&>(gradient).attributes(
        [&](const auto& item) { collect_attribute(args, item); });
  }

  // Attributes that are symbols while a graph is compiled.
  template <class Visit>
  void each_symbolic(Visit&& visit) {
    gradient.attributes([&](auto& item) {
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
    gradient.attributes([&](auto& item) { pack_attribute(args, item); });
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
    gradient.attributes([&](auto& item) { unpack_attribute(args, item); });
    auto wanted = args.unpack<std::vector<bool>>();
    auto tensors = args.unpack<variable_list>();
    if (!any_defined(grads)) return variable_list(wanted.size());
    NoAutocastGuard no_autocast;
    return gradient.apply(grads, tensors, Needed(wanted.begin(), wanted.end()));
  }
};

// The results of an operator, one tensor or a tuple of them, as a list and back.
inline std::array<Tensor, 1> as_list(Tensor result) { return {std::move(result)}; }
template <class... T>
std::array<Tensor, sizeof...(T)> as_list(std::tuple<T...> results) {
  return std::apply(
      [](auto&... t)->std::array<Tensor, sizeof...(T)> { return {std::move(t)...}; }, results);
}
template <class Results, size_t count>
Results from_list(std::array<Tensor, count> list) {
  return std::apply([](auto&... t) { return Results(std::move(t)...); }, list);
}

// Runs an operator below autograd and records its node.
//   inputs   tensors, in the order of the gradients; may be undefined
//   run      () -> a Tensor or a tuple of them, which is the result: the kernels; called with
//            autograd's keys excluded
//   record   (node, results) -> void: fills node->gradient and node->saved (use save_input and
//            save_result) from a list of the results; called only when a gradient is wanted,
//            after `run`
//   differentiable  how many of the leading results have gradients
//   save_first      (node) -> void: saves inputs before `run`, as PyTorch's operators do. A hook
//                   that raises then leaves nothing changed, and torch.utils.checkpoint need not
//                   run once more what saves inputs alone.
struct SaveNothingFirst {
  template <class Node>
  void operator()(Node&) const {}
};
template <class Gradient, class Run, class Record, class SaveFirst = SaveNothingFirst>
auto run_with_gradient(c10::ArrayRef<TensorRef> inputs, size_t differentiable, Run&& run,
                       Record&& record, SaveFirst&& save_first = {}) {
  using namespace torch::autograd;
  using Results = decltype(run());
  using Node = GradientNode<Gradient>;
  TORCH_INTERNAL_ASSERT(Gradient::kInputs == kAny || inputs.size() == Gradient::kInputs);
  bool wanted = false;
  for (const Tensor& t : inputs) {
    wanted |= t.defined() && t.requires_grad();
    if constexpr (!HasForwardMode<Gradient>::value) {
      TORCH_CHECK_NOT_IMPLEMENTED(!t.defined() || !isFwGradDefined(t), Gradient::kName,
                                  ": forward-mode AD is not supported by this operator");
    }
  }
  wanted = wanted && at::GradMode::is_enabled();
  std::shared_ptr<Node> node;
  if (wanted) {
    node = std::shared_ptr<Node>(new Node(), deleteNode);
    edge_list edges;
    edges.reserve(inputs.size());
    for (const Tensor& t : inputs) edges.push_back(t.defined() ? impl::gradient_edge(t) : Edge());
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

template <class Node>
void save_input(Node& node, const Tensor& t) {
  node.saved.emplace_back(t, false);
  node.is_result.push_back(false);
}
template <class Node>
void save_result(Node& node, const Tensor& t) {
  node.saved.emplace_back(t, true);
  node.is_result.push_back(true);
}

// Has the node of a coupled operator's forward remember what ran: by its policy, or by the writer
// if that says nothing yet, as in a graph being traced. `writer` may be undefined.
template <class Node>
void save_writer(Node& node, std::string_view op, std::string_view family, OptionalPolicy policy,
                 const Tensor& writer) {
  bool says = writer.defined() && !is_tracing();
  OptionalPolicy ran = says ? policy_of_writer(op, writer) : std::nullopt;
  node.gradient.policy = ran ? std::string(*ran) : policy_to_save(family, policy);
  save_input(node, ran ? Tensor() : writer);
}

// Whether a transform of torch.func holds the tensor: it shows the strides of a contiguous one.
inline bool is_transformed(const Tensor& t) {
  constexpr c10::DispatchKeySet kTransformed({c10::DispatchKey::Batched,
                                              c10::DispatchKey::FuncTorchBatched,
                                              c10::DispatchKey::FuncTorchGradWrapper});
  return t.key_set().has_any(kTransformed);
}

// A gradient with the strides of the parameter that it is of, where only those of dimensions of
// size 1 differ. Unless they are equal, DistributedDataParallel warns and copies at each step.
Tensor with_strides_of_parameter(Tensor gradient, SymIntArrayRef strides);

// A tensor to differentiate by, alone: what others have of its history does not count. Where the
// gradient is itself to be differentiated, it goes on to that history. A transform of torch.func
// that has ended leaves tensors that say they require gradients but have no history: only what is
// made of them tells.
inline Tensor variable_of(const Tensor& t, bool create_graph) {
  if (create_graph && t.requires_grad()) {
    Tensor variable = at::alias(t);
    if (variable.requires_grad()) return variable;
  }
  return t.detach().requires_grad_();
}

inline bool has_history(TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) {
    return t.defined() && t.requires_grad() && at::alias(t).requires_grad();
  });
}

// The gradients of a backward operator, by differentiating a formula of it in ATen operators:
// `formula` takes `inputs` and gives the tensors whose gradients are `grads`. Undefined where not
// needed.
template <class Formula>
variable_list gradients_of_formula(Formula&& formula, TensorList inputs, const variable_list& grads,
                                   const Needed& needed) {
  bool create_graph = c10::GradMode::is_enabled();
  AutogradGuard on;
  create_graph = create_graph && (has_history(inputs) || has_history(grads));
  std::optional<NoSavedTensorHooks> no_hooks;
  if (!create_graph) no_hooks.emplace();
  std::vector<Tensor> arguments = inputs.vec();
  variable_list wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!needed[i]) continue;
    arguments[i] = variable_of(inputs[i], create_graph);
    wanted.push_back(arguments[i]);
  }
  variable_list outputs, weights;
  std::vector<Tensor> results = formula(arguments);
  for (size_t i = 0; i < results.size(); ++i) {
    if (i >= grads.size() || !grads[i].defined() || !results[i].requires_grad()) continue;
    outputs.push_back(results[i]);
    weights.push_back(grads[i]);
  }
  variable_list gradients(inputs.size());
  if (wanted.empty() || outputs.empty()) return gradients;
  variable_list found =
      torch::autograd::grad(outputs, wanted, weights, std::nullopt, create_graph, true);
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (needed[i]) gradients[i] = found[next++];
  }
  return gradients;
}

}  // namespace torch_cudnn_ext
