// Batch normalisation as an operation graph: the norm operations for training, a chain of pointwise
// ones for inference, and the addition and activation after them.
#include <ATen/ATen.h>

#include "backends/cudnn_graph/builder.h"
#include "backends/cudnn_graph/engine.h"
#include "core/operator.h"

namespace torch_cudnn_ext::graph {
namespace {

TensorSpec statistic_image(const BatchNormProblem& p) {
  return {p.statistic_dtype(), {1, p.x.sizes[1], 1, 1}, {p.x.sizes[1], 1, 1, 1}};
}

std::vector<Scalar> batch_norm_scalars_of(const BatchNormProblem& p) {
  if (p.pass != BatchNormPass::fwd) return {};
  if (!p.running) return {&Bindings::epsilon};
  return {&Bindings::epsilon, &Bindings::momentum};
}

// The operations that lead to y.
int steps_of(const BatchNormProblem& p) {
  return (p.pass == BatchNormPass::infer ? 4 : 1) + p.z + (p.activation == Activation::relu);
}

// The tensors of one graph, and what follows a normalisation.
class Norm : public Chain {
 public:
  explicit Norm(const BatchNormProblem& p)
      : Chain(steps_of(p), p.image(p.x.dtype), at::kFloat, p.alignment, batch_norm_scalars_of(p)),
        p_(p) {}

  size_t data(Role role) { return tensor(p_.image(p_.x.dtype), role); }
  size_t statistic(Role role) {
    return keep(make_tensor(statistic_image(p_), role, statistic_alignment()));
  }
  size_t updated(Role role) {
    return keep(make_updated(statistic_image(p_), role, statistic_alignment()));
  }

  // The addition and the activation, from what was normalised.
  void finish(size_t y) {
    if (p_.z) y = follow(CUDNN_POINTWISE_ADD, y, data(Role::z));
    if (p_.activation == Activation::relu) follow(CUDNN_POINTWISE_RELU_FWD, y);
  }

 private:
  // A float32 is aligned to itself whatever the data is.
  int64_t statistic_alignment() const { return std::max<int64_t>(p_.alignment, 4); }

  const BatchNormProblem& p_;
};

constexpr cudnnBackendNormMode_t kMode = CUDNN_BATCH_NORM;

void add_training(Norm& graph, const BatchNormProblem& p) {
  cudnnBackendNormFwdPhase_t phase = CUDNN_NORM_FWD_TRAINING;
  size_t y = graph.result();
  Descriptor norm(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
  norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &kMode)
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, 1, &phase)
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, graph[graph.data(Role::x)])
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, graph[graph.statistic(Role::w)])
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, graph[graph.statistic(Role::bias)])
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, graph[graph.statistic(Role::mean)])
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, graph[graph.statistic(Role::invstd)])
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, graph[graph.scalar(&Bindings::epsilon)])
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, graph[y]);
  if (p.running) {
    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC,
             graph[graph.scalar(&Bindings::momentum)])
        .set(CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC,
             graph[graph.statistic(Role::running_mean)])
        .set(CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC,
             graph[graph.statistic(Role::running_var)])
        .set(CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC,
             graph[graph.updated(Role::running_mean)])
        .set(CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC,
             graph[graph.updated(Role::running_var)]);
  }
  graph.add(std::move(norm), "cuDNN has no such normalisation");
  graph.finish(y);
}

void add_backward(Norm& graph) {
  Descriptor norm(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
  norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &kMode)
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, graph[graph.data(Role::x)])
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, graph[graph.data(Role::dy)])
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, graph[graph.statistic(Role::w)])
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, graph[graph.statistic(Role::mean)])
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, graph[graph.statistic(Role::invstd)])
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, graph[graph.data(Role::dx)])
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, graph[graph.statistic(Role::dw)])
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, graph[graph.statistic(Role::dbias)]);
  graph.add(std::move(norm), "cuDNN has no such gradient of a normalisation");
}

// The norm operation has no engine for inference. The square root is taken before the graph runs.
void add_inference(Norm& graph) {
  size_t y = graph.data(Role::x);
  y = graph.follow(CUDNN_POINTWISE_SUB, y, graph.statistic(Role::running_mean));
  y = graph.follow(CUDNN_POINTWISE_MUL, y, graph.statistic(Role::invstd));
  y = graph.follow(CUDNN_POINTWISE_MUL, y, graph.statistic(Role::w));
  y = graph.follow(CUDNN_POINTWISE_ADD, y, graph.statistic(Role::bias));
  graph.finish(y);
}

OperationGraph make_batch_norm_operation_graph(const BatchNormProblem& p, const Device& device) {
  Norm graph(p);
  switch (p.pass) {
    case BatchNormPass::fwd:
      add_training(graph, p);
      break;
    case BatchNormPass::infer:
      add_inference(graph);
      break;
    case BatchNormPass::bwd:
      add_backward(graph);
      break;
  }
  return graph.make(device);
}

// The tensors that the graph knows.
std::vector<SlotSpec> batch_norm_slots_of(const BatchNormProblem& p) {
  std::vector<SlotSpec> slots = operator_of(p).slots(p);
  for (SlotSpec& slot : slots) {
    bool replaced = p.pass == BatchNormPass::infer && slot.role == Role::running_var;
    if (replaced) slot.role = Role::invstd;
  }
  return slots;
}

class InferencePlan : public Plan {
 public:
  InferencePlan(const BatchNormProblem& p, std::unique_ptr<EnginePlan> engine)
      : Plan(engine->algorithm, engine->notes, *engine->workspace_bytes + p.statistic().nbytes()),
        engine_(std::move(engine)) {}

  void run(Bindings& b) override {
    b[Role::invstd] = (b[Role::running_var] + b.epsilon).rsqrt_();
    engine_->run(b);
  }

 private:
  const std::unique_ptr<EnginePlan> engine_;
};

// nullopt if a graph can be made.
std::optional<Unsupported> batch_norm_why_unsupported(const BatchNormProblem& p) {
  if (p.x.dtype == at::kDouble) return Unsupported{"the graph API has no float64 normalisation"};
  if (p.pass == BatchNormPass::bwd && !p.train) {
    return Unsupported{
        "cuDNN's backward is that of training; no operation takes statistics that were kept"};
  }
  return std::nullopt;
}

std::shared_ptr<Plan> make_batch_norm_plan(const BatchNormProblem& p, const Algorithm& algorithm,
                                           Engine engine) {
  if (p.pass == BatchNormPass::infer) {
    return std::make_shared<InferencePlan>(
        p, std::make_unique<EnginePlan>(algorithm, std::move(engine), batch_norm_slots_of(p)));
  }
  return std::make_shared<EnginePlan>(algorithm, std::move(engine), batch_norm_slots_of(p),
                                      batch_norm_scalars_of(p));
}

const auto batch_norm_registered =
    register_graphs<BatchNormProblem, batch_norm_why_unsupported, make_batch_norm_operation_graph,
                    make_batch_norm_plan>();

}  // namespace
}  // namespace torch_cudnn_ext::graph
