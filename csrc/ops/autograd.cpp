#include "ops/autograd.h"

namespace torch_cudnn_ext {

variable_list call_in_graph(const torch::autograd::Node& node, SwapSavedVariables& swap,
                            torch::dynamo::autograd::functional_apply_t gradient,
                            const variable_list& grads, const PackedArgs& args) {
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

Tensor with_strides_of_parameter(Tensor gradient, SymIntArrayRef strides) {
  SymIntArrayRef sizes = gradient.sym_sizes(), own = gradient.sym_strides();
  if (own == strides || is_transformed(gradient)) return gradient;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && own[i] != strides[i]) return gradient;
  }
  if (!is_plain_call({&gradient})) return gradient.as_strided_symint(sizes, strides);
  return strided_view(gradient, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
}

}  // namespace torch_cudnn_ext
