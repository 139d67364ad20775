// Conversions between types as an operation graph of one elementwise operation.
#include <algorithm>

#include "backends/cudnn_graph/builder.h"
#include "backends/cudnn_graph/elementwise.h"
#include "backends/cudnn_graph/engine.h"
#include "core/operator.h"

namespace torch_cudnn_ext::graph {
namespace {

OperationGraph make_transform_operation_graph(const TransformProblem& p, const Device& device) {
  auto compute = compute_dtype(c10::promoteTypes(p.x.dtype, p.y.dtype));
  int64_t elements = p.x.numel();
  Builder graph;
  auto tensor = [&](c10::ScalarType dtype, Role role) {
    auto element = static_cast<int64_t>(c10::elementSize(dtype));
    return graph.keep(
        make_tensor(as_matrix(dtype, elements), role, std::max(p.alignment, element)));
  };
  size_t x = tensor(p.x.dtype, Role::x), y = tensor(p.y.dtype, Role::y);
  size_t identity = graph.keep(make_function(CUDNN_POINTWISE_IDENTITY, compute));
  graph.pointwise(identity, x, std::nullopt, y);
  return graph.make(device);
}

// nullopt if a graph can be made.
std::optional<Unsupported> transform_why_unsupported(const TransformProblem& p) {
  if (p.keeps_order()) return std::nullopt;
  return Unsupported{
      "cuDNN's engines transpose nothing; the graph takes dense tensors that keep their order in "
      "memory"};
}

std::shared_ptr<Plan> make_transform_plan(const TransformProblem& p, const Algorithm& algorithm,
                                          Engine engine) {
  return std::make_shared<EnginePlan>(algorithm, std::move(engine), operator_of(p).slots(p));
}

const auto transform_registered =
    register_graphs<TransformProblem, transform_why_unsupported, make_transform_operation_graph,
                    make_transform_plan>();

}  // namespace
}  // namespace torch_cudnn_ext::graph
