// Reductions as an operation graph. cuDNN's engines take images in channels-last layout and reduce
// all pixels: the leading dimensions of a folded problem, or all of them.
#include <numeric>

#include "backends/cudnn_graph/builder.h"
#include "backends/cudnn_graph/engine.h"
#include "core/operator.h"
#include "cudnn/problems.h"

namespace torch_cudnn_ext::graph {
namespace {

bool is_offered(ReduceKind kind) {
  return kind == ReduceKind::add || kind == ReduceKind::mul || kind == ReduceKind::min ||
         kind == ReduceKind::max || kind == ReduceKind::absmax;
}

OperationGraph make_reduction_operation_graph(const ReduceProblem& p, const Device& device) {
  bool to_scalar = p.x.sizes.size() == 1;
  constexpr int64_t kChannels = 1024;  // at most, if everything is reduced
  int64_t channels = to_scalar ? std::gcd(p.x.sizes[0], kChannels) : p.x.sizes[1];
  Dims sizes{1, channels, 1, p.x.numel() / channels};
  Dims kept{1, to_scalar ? 1 : channels, 1, 1};
  auto compute = compute_dtype(p.x.dtype);
  auto kind = cudnn_reduction(p.kind);
  Chain graph(1, {p.x.dtype, kept, channels_last_strides(kept)}, compute, p.alignment);
  size_t x = graph.tensor({p.x.dtype, sizes, channels_last_strides(sizes)}, Role::x);
  size_t y = graph.result();
  Descriptor reduction(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  reduction.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &kind)
      .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, cudnn_type(compute))
      .finalise("the reduction is not valid");
  Descriptor operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, graph[x])
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, graph[y])
      .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, graph[graph.keep(std::move(reduction))]);
  graph.add(std::move(operation), "cuDNN has no such reduction");
  return graph.make(device);
}

// nullopt if a graph can be made.
std::optional<Unsupported> reduction_why_unsupported(const ReduceProblem& p) {
  if (p.indices) return Unsupported{"the graph API gives no indices"};
  if (!is_offered(p.kind)) {
    return Unsupported{"the graph API reduces by add, mul, min, max and absmax alone"};
  }
  bool rows = p.first_reduced && p.x.sizes.size() <= 2;
  if (!rows) {
    return Unsupported{"cuDNN's engines reduce leading dimensions or all, in order of memory"};
  }
  return std::nullopt;
}

std::shared_ptr<Plan> make_reduction_plan(const ReduceProblem& p, const Algorithm& algorithm,
                                          Engine engine) {
  return std::make_shared<EnginePlan>(algorithm, std::move(engine), operator_of(p).slots(p));
}

const auto reduction_registered =
    register_graphs<ReduceProblem, reduction_why_unsupported, make_reduction_operation_graph,
                    make_reduction_plan>();

}  // namespace
}  // namespace torch_cudnn_ext::graph
