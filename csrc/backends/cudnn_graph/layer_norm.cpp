// Layer, RMS and instance norm as an operation graph; group norm, for which cuDNN has no engine, as
// an instance norm of groups, with the scale and shift of each channel after it.
#include "backends/cudnn_graph/builder.h"
#include "backends/cudnn_graph/engine.h"
#include "backends/group_norm.h"
#include "core/operator.h"

namespace torch_cudnn_ext::graph {
namespace {

const std::vector<Scalar> kScalars{&Bindings::epsilon};

// cuDNN's norms have a scale, and all but the RMS norm a bias. If the problem has none, they are
// ones and zeros, and their gradients are dropped.
LayerNormProblem with_parameters(const LayerNormProblem& p) {
  LayerNormProblem q = p;
  auto dtype = p.w ? *p.w : p.bias.value_or(p.statistics().dtype);
  q.w = dtype;
  if (q.has_mean()) q.bias = dtype;
  return q;
}

// The tensors as cuDNN sees them, in four dimensions; `q` has all parameters.
struct Specs {
  TensorSpec x, parameters, statistics;
};

Specs specs_of(const LayerNormProblem& q) {
  auto v = q.view();
  int64_t c = v.channels, n = v.batch, s = v.space;
  Specs specs;
  bool nchw = s > 1 && q.x.strides == contiguous_strides(q.x.sizes);
  specs.x = {q.x.dtype, {n, c, s, 1}, nchw ? Dims{c * s, s, 1, 1} : Dims{c * s, 1, c, c}};
  specs.parameters = {*q.w, {1, c, 1, 1}, {c, 1, c, c}};
  // One for each row, or for each channel of each sample.
  bool of_rows = q.kind != LayerNormKind::instance;
  int64_t each = of_rows ? 1 : c;
  specs.statistics = {q.statistics().dtype, {n, each, 1, 1}, {each, 1, each, each}};
  return specs;
}

cudnnBackendNormMode_t mode_of(LayerNormKind kind) {
  if (kind == LayerNormKind::layer) return CUDNN_LAYER_NORM;
  return kind == LayerNormKind::rms ? CUDNN_RMS_NORM : CUDNN_INSTANCE_NORM;
}

struct Attribute {
  Role role;
  cudnnBackendAttributeName_t name;
};
constexpr Attribute kLayerNormForward[] = {
    {Role::x, CUDNN_ATTR_OPERATION_NORM_FWD_XDESC},
    {Role::w, CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC},
    {Role::bias, CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC},
    {Role::mean, CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC},
    {Role::invstd, CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC},
    {Role::y, CUDNN_ATTR_OPERATION_NORM_FWD_YDESC}};
constexpr Attribute kBackward[] = {{Role::x, CUDNN_ATTR_OPERATION_NORM_BWD_XDESC},
                                   {Role::dy, CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC},
                                   {Role::w, CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC},
                                   {Role::mean, CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC},
                                   {Role::invstd, CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC},
                                   {Role::dx, CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC},
                                   {Role::dw, CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC},
                                   {Role::dbias, CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC}};

TensorSpec spec_of_role(const Specs& specs, Role role) {
  switch (role) {
    case Role::w:
    case Role::bias:
    case Role::dw:
    case Role::dbias:
      return specs.parameters;
    case Role::mean:
    case Role::invstd:
      return specs.statistics;
    default:
      return specs.x;
  }
}

// What cuDNN is asked for.
LayerNormProblem asked(const LayerNormProblem& p) {
  return with_parameters(p.kind == LayerNormKind::group ? instances_of_groups(p) : p);
}

OperationGraph make_layer_norm_operation_graph(const LayerNormProblem& p, const Device& device) {
  LayerNormProblem q = asked(p);
  bool forward = q.pass == Pass::fwd;
  Specs specs = specs_of(q);
  Builder graph;
  Descriptor operation(forward ? CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR
                               : CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
  auto mode = mode_of(q.kind);
  operation.set(forward ? CUDNN_ATTR_OPERATION_NORM_FWD_MODE : CUDNN_ATTR_OPERATION_NORM_BWD_MODE,
                CUDNN_TYPE_NORM_MODE, 1, &mode);
  if (forward) {
    auto phase = q.stats ? CUDNN_NORM_FWD_TRAINING : CUDNN_NORM_FWD_INFERENCE;
    operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, 1, &phase);
    size_t epsilon = graph.keep(make_scalar(kScalars, kScalars[0], 4));
    operation.set(CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, graph[epsilon]);
  }
  auto slots = operator_of(q).slots(q);
  for (const SlotSpec& slot : slots) {
    auto names =
        forward ? c10::ArrayRef<Attribute>(kLayerNormForward) : c10::ArrayRef<Attribute>(kBackward);
    for (const Attribute& attribute : names) {
      if (attribute.role != slot.role) continue;
      TensorSpec spec = spec_of_role(specs, slot.role);
      auto element = static_cast<int64_t>(c10::elementSize(spec.dtype));
      size_t tensor = graph.keep(make_tensor(spec, slot.role, std::max(q.alignment, element)));
      operation.set(attribute.name, graph[tensor]);
    }
  }
  graph.add(std::move(operation), "cuDNN has no such norm");
  return graph.make(device);
}

// An engine's plan that makes the parameters that the problem does not have.
class NormPlan : public Plan {
 public:
  NormPlan(const LayerNormProblem& p, const LayerNormProblem& q, std::unique_ptr<EnginePlan> engine)
      : Plan(engine->algorithm, engine->notes, *engine->workspace_bytes + synthetic_bytes(p, q)),
        p_(p),
        q_(q),
        slots_(operator_of(p).slots(p)),
        engine_(std::move(engine)) {}

  void run(Bindings& b) override {
    Bindings full = b;
    auto options = b[Role::x].options().dtype(q_.w);
    bool forward = p_.pass == Pass::fwd;
    if (!full[Role::w].defined()) full[Role::w] = at::ones({p_.view().channels}, options);
    if (!p_.bias && q_.bias && forward) full[Role::bias] = at::zeros({p_.view().channels}, options);
    engine_->run(full);
    for (const SlotSpec& slot : slots_) b[slot.role] = full[slot.role];
  }

 private:
  // For parameters that the problem does not have and, in a backward, for their gradients.
  static int64_t synthetic_bytes(const LayerNormProblem& p, const LayerNormProblem& q) {
    bool forward = p.pass == Pass::fwd;
    int64_t count = (p.w ? 0 : forward ? 1 : 2) + (q.bias && !p.bias ? 1 : 0);
    return count * p.view().channels * static_cast<int64_t>(c10::elementSize(*q.w));
  }

  const LayerNormProblem p_, q_;
  const std::vector<SlotSpec> slots_;
  const std::unique_ptr<EnginePlan> engine_;
};

// nullopt if a graph can be made.
std::optional<Unsupported> layer_norm_why_unsupported(const LayerNormProblem& p) {
  if (p.x.dtype == at::kDouble) return Unsupported{"cuDNN's graph API has no norm of float64"};
  return std::nullopt;
}

std::shared_ptr<Plan> make_layer_norm_plan(const LayerNormProblem& p, const Algorithm& algorithm,
                                           Engine engine) {
  bool grouped = p.kind == LayerNormKind::group;
  LayerNormProblem instances = grouped ? instances_of_groups(p) : p, q = asked(p);
  // EPSILON is an input of the forward alone.
  auto inner = std::make_unique<EnginePlan>(algorithm, std::move(engine), operator_of(q).slots(q),
                                            p.pass == Pass::fwd ? kScalars : std::vector<Scalar>{});
  auto plan = std::make_shared<NormPlan>(instances, q, std::move(inner));
  if (!grouped) return plan;
  return std::make_shared<GroupNormPlan>(p, std::move(plan));
}

const auto layer_norm_registered =
    register_graphs<LayerNormProblem, layer_norm_why_unsupported, make_layer_norm_operation_graph,
                    make_layer_norm_plan>();

}  // namespace
}  // namespace torch_cudnn_ext::graph
