// Batch normalisation as an operation graph: the norm operations for training, a chain of pointwise
// ones for inference, and the addition and activation behind them.
#include <ATen/ATen.h>

#include "backends/cudnn_graph/engine.h"
#include "backends/cudnn_graph/pointwise.h"
#include "core/operator.h"

namespace torch_cudnn_ext::graph {
namespace {

constexpr int kDims = 4;

TensorSpec statistic_image(const BatchNormProblem& p) {
  return {p.statistic_dtype(), {1, p.x.sizes[1], 1, 1}, {p.x.sizes[1], 1, 1, 1}};
}

// Collects the tensors and operations of one graph.
class Builder {
 public:
  explicit Builder(const BatchNormProblem& p) : p_(p) { parts_.reserve(32); }

  const Descriptor& data(Role role) {
    return keep(make_tensor(p_.image(p_.x.dtype), role, p_.alignment));
  }
  const Descriptor& statistic(Role role) {
    return keep(make_tensor(statistic_image(p_), role, statistic_alignment()));
  }
  const Descriptor& updated(Role role) {
    return keep(make_updated(statistic_image(p_), role, statistic_alignment()));
  }
  const Descriptor& scalar(Scalar which) { return keep(make_scalar(scalars, which, kDims)); }

  // Where the next operation writes: y behind the last one, else an intermediate in float32.
  const Descriptor& result(bool is_last) {
    if (is_last) return data(Role::y);
    return keep(make_intermediate(p_.image(at::kFloat), ++intermediates_));
  }

  void pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* other,
                 const Descriptor& y) {
    const Descriptor& function = keep(make_function(mode, at::kFloat));
    operations_.push_back(other == nullptr ? make_pointwise(function, x, y)
                                           : make_pointwise(function, x, *other, y));
  }

  // The addition and the activation, from what was normalised.
  void finish(const Descriptor* y) {
    bool relu = p_.activation == Activation::relu;
    if (p_.z) {
      const Descriptor& sum = result(!relu);
      pointwise(CUDNN_POINTWISE_ADD, *y, &data(Role::z), sum);
      y = &sum;
    }
    if (relu) pointwise(CUDNN_POINTWISE_RELU_FWD, *y, nullptr, result(true));
  }
  bool is_plain() const { return !p_.z && p_.activation == Activation::none; }

  void add(Descriptor operation, const char* what) {
    operation.finalise(what);
    operations_.push_back(std::move(operation));
  }

  OperationGraph make(const Device& device) {
    return make_graph(device, std::move(parts_), std::move(operations_));
  }

  std::vector<Scalar> scalars;

 private:
  // A float32 is aligned to itself whatever the data is.
  int64_t statistic_alignment() const { return std::max<int64_t>(p_.alignment, 4); }

  const Descriptor& keep(Descriptor descriptor) {
    TORCH_INTERNAL_ASSERT(parts_.size() < parts_.capacity());  // references must stay valid
    parts_.push_back(std::move(descriptor));
    return parts_.back();
  }

  const BatchNormProblem& p_;
  std::vector<Descriptor> parts_, operations_;
  int intermediates_ = 0;
};

constexpr cudnnBackendNormMode_t kMode = CUDNN_BATCH_NORM;

void add_training(Builder& graph, const BatchNormProblem& p) {
  cudnnBackendNormFwdPhase_t phase = CUDNN_NORM_FWD_TRAINING;
  const Descriptor& y = graph.result(graph.is_plain());
  Descriptor norm(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
  norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &kMode)
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, 1, &phase)
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, graph.data(Role::x))
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, graph.statistic(Role::w))
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, graph.statistic(Role::bias))
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, graph.statistic(Role::mean))
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, graph.statistic(Role::invstd))
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, graph.scalar(&Bindings::epsilon))
      .set(CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, y);
  if (p.running) {
    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC, graph.scalar(&Bindings::momentum))
        .set(CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC,
             graph.statistic(Role::running_mean))
        .set(CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC,
             graph.statistic(Role::running_var))
        .set(CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC,
             graph.updated(Role::running_mean))
        .set(CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC,
             graph.updated(Role::running_var));
  }
  graph.add(std::move(norm), "cuDNN has no such normalisation");
  graph.finish(&y);
}

void add_backward(Builder& graph) {
  Descriptor norm(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
  norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &kMode)
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, graph.data(Role::x))
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, graph.data(Role::dy))
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, graph.statistic(Role::w))
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, graph.statistic(Role::mean))
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, graph.statistic(Role::invstd))
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, graph.data(Role::dx))
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, graph.statistic(Role::dw))
      .set(CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, graph.statistic(Role::dbias));
  graph.add(std::move(norm), "cuDNN has no such gradient of a normalisation");
}

// The norm operation has no engine for inference. The square root is taken before the graph runs.
void add_inference(Builder& graph) {
  const Descriptor& centred = graph.result(false);
  graph.pointwise(CUDNN_POINTWISE_SUB, graph.data(Role::x), &graph.statistic(Role::running_mean),
                  centred);
  const Descriptor& normal = graph.result(false);
  graph.pointwise(CUDNN_POINTWISE_MUL, centred, &graph.statistic(Role::invstd), normal);
  const Descriptor& scaled = graph.result(false);
  graph.pointwise(CUDNN_POINTWISE_MUL, normal, &graph.statistic(Role::w), scaled);
  const Descriptor& y = graph.result(graph.is_plain());
  graph.pointwise(CUDNN_POINTWISE_ADD, scaled, &graph.statistic(Role::bias), y);
  graph.finish(&y);
}

std::vector<Scalar> scalars_of(const BatchNormProblem& p) {
  if (p.pass != BatchNormPass::fwd) return {};
  if (!p.running) return {&Bindings::epsilon};
  return {&Bindings::epsilon, &Bindings::momentum};
}

OperationGraph make_operation_graph(const BatchNormProblem& p, const Device& device) {
  Builder graph(p);
  graph.scalars = scalars_of(p);
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
std::vector<SlotSpec> slots_of(const BatchNormProblem& p) {
  std::vector<SlotSpec> slots = operator_of(p).slots(p);
  for (SlotSpec& slot : slots) {
    bool replaced = p.pass == BatchNormPass::infer && slot.role == Role::running_var;
    if (replaced) slot.role = Role::invstd;
  }
  return slots;
}

class InferencePlan : public EnginePlan {
 public:
  using EnginePlan::EnginePlan;
  void run(Bindings& b) override {
    b[Role::invstd] = (b[Role::running_var] + b.epsilon).rsqrt_();
    EnginePlan::run(b);
  }
};

// nullopt where a graph can be made.
std::optional<Unsupported> refuse(const BatchNormProblem& p) {
  if (p.x.dtype == at::kDouble) return Unsupported{"the graph API has no float64 normalisation"};
  if (p.pass == BatchNormPass::bwd && !p.train) {
    return Unsupported{
        "cuDNN's backward is that of training; no operation takes statistics that were kept"};
  }
  return std::nullopt;
}

std::shared_ptr<Plan> make_plan(const BatchNormProblem& p, const Algorithm& algorithm,
                                Engine engine) {
  if (p.pass == BatchNormPass::infer) {
    return std::make_shared<InferencePlan>(algorithm, std::move(engine), slots_of(p));
  }
  return std::make_shared<EnginePlan>(algorithm, std::move(engine), slots_of(p), scalars_of(p));
}

const auto registered = register_graphs<BatchNormProblem, refuse, make_operation_graph,
                                        no_defect<BatchNormProblem>, make_plan>();

}  // namespace
}  // namespace torch_cudnn_ext::graph
