#include "torch/internals.h"

#include <ATen/cudnn/Handle.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch_cudnn_ext {

variable_list call_in_graph(const AutogradNode& node, SwapSavedVariables& swap,
                            PackedGradient gradient, const variable_list& grads,
                            const PackedArgs& args) {
  namespace compiled = torch::dynamo::autograd;
  std::vector<at::TypePtr> types;
  for (const c10::IValue& value : args.vec()) {
    types.push_back(value.isTensor() ? at::TensorType::get() : value.type());
  }
  // A custom function has a name of its own at each call, since these types may differ.
  constexpr bool kIsCustom = true;
  const auto& compiler = compiled::getPyCompilerInterface();
  std::string name = compiler->bind_function(swap.get_py_compiler(), node.name(),
                                             std::move(gradient), types, kIsCustom);
  auto edges =
      compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
          compiled::get_input_metadata(node.next_edges()));
  return compiler->call_function(swap.get_py_compiler(), "apply_functional", name, grads,
                                 args.vec(), edges);
}

cudnnContext* current_cudnn_handle() { return at::native::getCudnnHandle(); }

}  // namespace torch_cudnn_ext
