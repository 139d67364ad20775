// Activations as an operation graph of one elementwise operation, or three for gradients from the
// output.
#include "backends/cudnn_graph/builder.h"
#include "backends/cudnn_graph/elementwise.h"
#include "backends/cudnn_graph/engine.h"

namespace torch_cudnn_ext::graph {
namespace {

Descriptor make_activation(const ActivationProblem& p, c10::ScalarType compute) {
  bool forward = p.pass == Pass::fwd;
  auto function = [&](cudnnPointwiseMode_t fwd, cudnnPointwiseMode_t bwd,
                      std::initializer_list<PointwiseAttribute> attributes) {
    return make_function(forward ? fwd : bwd, compute, attributes);
  };
  switch (p.kind) {
    case ActivationKind::relu:
      return function(CUDNN_POINTWISE_RELU_FWD, CUDNN_POINTWISE_RELU_BWD, {});
    case ActivationKind::clipped_relu:
      return function(CUDNN_POINTWISE_RELU_FWD, CUDNN_POINTWISE_RELU_BWD,
                      {{CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, p.coefficient}});
    case ActivationKind::tanh:
      return function(CUDNN_POINTWISE_TANH_FWD, CUDNN_POINTWISE_TANH_BWD, {});
    case ActivationKind::sigmoid:
      return function(CUDNN_POINTWISE_SIGMOID_FWD, CUDNN_POINTWISE_SIGMOID_BWD, {});
    case ActivationKind::elu:
      return function(CUDNN_POINTWISE_ELU_FWD, CUDNN_POINTWISE_ELU_BWD,
                      {{CUDNN_ATTR_POINTWISE_ELU_ALPHA, p.coefficient}});
    case ActivationKind::swish:
      return function(CUDNN_POINTWISE_SWISH_FWD, CUDNN_POINTWISE_SWISH_BWD,
                      {{CUDNN_ATTR_POINTWISE_SWISH_BETA, p.coefficient}});
  }
  TORCH_INTERNAL_ASSERT(false);
}

// cuDNN computes gradients from x. From y, dx = dy - (dy y) y for tanh and dy y - (dy y) y for
// sigmoid.
bool needs_products(const ActivationProblem& p) {
  return p.from_output && (p.kind == ActivationKind::tanh || p.kind == ActivationKind::sigmoid);
}

// The tensors that the graph reads and writes.
std::vector<SlotSpec> activation_slots_of(const ActivationProblem& p) {
  if (p.pass == Pass::fwd) return {{Role::x, p.x, false}, {Role::y, p.x, true}};
  Role from = p.from_output ? Role::y : Role::x;
  return {{from, p.x, false}, {Role::dy, p.x, false}, {Role::dx, p.x, true}};
}

OperationGraph make_activation_operation_graph(const ActivationProblem& p, const Device& device) {
  auto compute = compute_dtype(p.x.dtype);
  TensorSpec spec = as_matrix(p.x.dtype, p.x.sizes[0]);
  Builder graph;
  for (const SlotSpec& slot : activation_slots_of(p)) {
    graph.keep(make_tensor(spec, slot.role, p.alignment));
  }
  constexpr size_t x = 0, y = 1, from = 0, dy = 1, dx = 2;  // positions in activation_slots_of()
  if (needs_products(p)) {
    size_t product = graph.keep(make_function(CUDNN_POINTWISE_MUL, compute));
    size_t difference = graph.keep(make_function(CUDNN_POINTWISE_SUB, compute));
    TensorSpec wide{compute, spec.sizes, spec.strides};
    size_t first = graph.keep(make_intermediate(wide, 0));
    size_t second = graph.keep(make_intermediate(wide, 1));
    bool tanh = p.kind == ActivationKind::tanh;
    graph.pointwise(product, dy, from, first);
    graph.pointwise(product, first, from, second);
    graph.pointwise(difference, tanh ? dy : first, second, dx);
  } else {
    size_t function = graph.keep(make_activation(p, compute));
    p.pass == Pass::fwd ? graph.pointwise(function, x, std::nullopt, y)
                        : graph.gradient(function, dy, from, dx);
  }
  return graph.make(device);
}

// nullopt if a graph can be made.
std::optional<Unsupported> activation_why_unsupported(const ActivationProblem& p) {
  if (p.from_output && (p.kind == ActivationKind::clipped_relu || p.kind == ActivationKind::elu)) {
    return Unsupported{
        "the graph API computes this gradient from x, which a call in place does not keep"};
  }
  return std::nullopt;
}

std::shared_ptr<Plan> make_activation_plan(const ActivationProblem& p, const Algorithm& algorithm,
                                           Engine engine) {
  return std::make_shared<EnginePlan>(algorithm, std::move(engine), activation_slots_of(p));
}

const auto activation_registered =
    register_graphs<ActivationProblem, activation_why_unsupported, make_activation_operation_graph,
                    make_activation_plan>();

}  // namespace
}  // namespace torch_cudnn_ext::graph
