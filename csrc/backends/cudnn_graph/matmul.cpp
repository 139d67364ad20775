// Matrix products as an operation graph, with the epilogue in it: alpha, beta z, bias,
// activation.
#include "backends/cudnn_graph/builder.h"
#include "backends/cudnn_graph/engine.h"
#include "core/operator.h"

namespace torch_cudnn_ext::graph {
namespace {

std::vector<Scalar> matmul_scalars_of(const MatmulProblem& p) {
  if (p.accumulate != Accumulate::general) return {};
  if (!p.z) return {&Bindings::alpha};
  return {&Bindings::alpha, &Bindings::beta};
}

size_t add_product(Chain& graph, const MatmulProblem& p) {
  size_t x = graph.tensor(p.x, Role::x), w = graph.tensor(p.w, Role::w), y = graph.result();
  Descriptor matmul(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  matmul.set(CUDNN_ATTR_MATMUL_COMP_TYPE, cudnn_type(p.compute))
      .finalise("the product is not valid");
  Descriptor operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, graph[x])
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, graph[w])
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, graph[y])
      .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, graph[graph.keep(std::move(matmul))]);
  graph.add(std::move(operation), "cuDNN has no such product");
  return y;
}

// The product and what follows it.
OperationGraph make_matmul_operation_graph(const MatmulProblem& p, const Device& device) {
  bool general = p.accumulate == Accumulate::general;
  bool activates = p.activation != Activation::none;
  bool scaled_z = general && p.z;
  int steps = 1 + general + scaled_z + p.z + p.bias + activates;
  Chain graph(steps, p.output(), p.compute, p.alignment, matmul_scalars_of(p));
  size_t value = add_product(graph, p);
  if (general) value = graph.follow(CUDNN_POINTWISE_MUL, value, graph.scalar(&Bindings::alpha));
  if (p.z) {
    size_t z = graph.tensor(p.output(), Role::z);
    if (general) z = graph.follow(CUDNN_POINTWISE_MUL, z, graph.scalar(&Bindings::beta));
    value = graph.follow(CUDNN_POINTWISE_ADD, value, z);
  }
  if (p.bias) {
    int64_t n = p.output().sizes[2];
    size_t bias = graph.tensor({p.x.dtype, {1, 1, n}, {n, n, 1}}, Role::bias);
    value = graph.follow(CUDNN_POINTWISE_ADD, value, bias);
  }
  graph.activate(p.activation, value);
  OperationGraph made = graph.make(device);
  made.float32_products = p.x.dtype == at::kFloat;
  return made;
}

// nullopt if a graph can be made.
std::optional<Unsupported> why_matmul_is_unsupported(const MatmulProblem& p) {
  if (p.x.dtype == at::kDouble) return Unsupported{"cuDNN's engines multiply no float64 matrices"};
  return std::nullopt;
}

std::shared_ptr<Plan> make_matmul_plan(const MatmulProblem& p, const Algorithm& algorithm,
                                       Engine engine) {
  bool fused = p.accumulate != Accumulate::none || p.bias || p.activation != Activation::none;
  if (fused) engine.notes.add(Note::fused);
  return std::make_shared<EnginePlan>(algorithm, std::move(engine), operator_of(p).slots(p),
                                      matmul_scalars_of(p));
}

const auto matmul_registered = register_graphs<MatmulProblem, why_matmul_is_unsupported,
                                               make_matmul_operation_graph, make_matmul_plan>();

}  // namespace
}  // namespace torch_cudnn_ext::graph
