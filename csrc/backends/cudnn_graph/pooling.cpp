// Pooling as an operation graph: resampling forward and backward.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include "backends/cudnn_graph/builder.h"
#include "backends/cudnn_graph/engine.h"
#include "cudnn/problems.h"

namespace torch_cudnn_ext::graph {
namespace {

TensorSpec indices_of(const PoolingProblem& p) {
  TensorSpec indices = p.y();
  indices.dtype = at::kChar;
  return indices;
}

// What a plan of this problem reads and writes.
std::vector<SlotSpec> pooling_slots_of(const PoolingProblem& p) {
  TensorSpec y = p.y();
  std::vector<SlotSpec> slots;
  if (p.pass == Pass::fwd) {
    slots = {{Role::x, p.x, false}, {Role::y, y, true}};
  } else {
    slots = {{Role::dy, y, false}, {Role::dx, p.x, true}};
    if (p.train && !keeps_indices(p)) {
      slots.push_back({Role::x, p.x, false});
      slots.push_back({Role::y, y, false});
    }
  }
  if (keeps_indices(p)) {
    slots.push_back({Role::reserve, indices_of(p), p.pass == Pass::fwd});
  }
  return slots;
}

struct RoleAttribute {
  Role role;
  cudnnBackendAttributeName_t forward, backward;
};
constexpr RoleAttribute kAttributes[] = {
    {Role::x, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_XDESC},
    {Role::y, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_YDESC},
    {Role::reserve, CUDNN_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC,
     CUDNN_ATTR_OPERATION_RESAMPLE_BWD_IDXDESC},
    {Role::dy, {}, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC},
    {Role::dx, {}, CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC}};

cudnnBackendAttributeName_t attribute_of(Role role, Pass pass) {
  for (const RoleAttribute& entry : kAttributes) {
    if (entry.role == role) return pass == Pass::fwd ? entry.forward : entry.backward;
  }
  TORCH_INTERNAL_ASSERT(false, "pooling has no ", role_text(role));
}

Descriptor make_resampling(const PoolingProblem& p) {
  const bool is_max = p.mode == PoolingMode::max;
  cudnnResampleMode_t mode = is_max ? CUDNN_RESAMPLE_MAXPOOL
                             : p.mode == PoolingMode::avg_include
                                 ? CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING
                                 : CUDNN_RESAMPLE_AVGPOOL_EXCLUDE_PADDING;
  cudnnPaddingMode_t padding = is_max ? CUDNN_NEG_INF_PAD : CUDNN_ZERO_PAD;
  cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
  auto dims = static_cast<int64_t>(p.spatial_dims());
  std::vector<cudnnFraction_t> before, after, stride, window;
  TensorSpec y = p.y();
  for (int i = 0; i < p.spatial_dims(); ++i) {
    // In ceil mode the last window reaches past the padding.
    int64_t end = (y.sizes[i + 2] - 1) * p.stride[i] + p.window[i];
    int64_t beyond = end - p.padding[i] - p.x.sizes[i + 2];
    before.push_back({p.padding[i], 1});
    after.push_back({std::max(p.padding[i], beyond), 1});
    stride.push_back({p.stride[i], 1});
    window.push_back({p.window[i], 1});
  }
  auto compute = p.x.dtype == at::kDouble ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  Descriptor resampling(CUDNN_BACKEND_RESAMPLE_DESCRIPTOR);
  resampling.set(CUDNN_ATTR_RESAMPLE_MODE, CUDNN_TYPE_RESAMPLE_MODE, 1, &mode)
      .set(CUDNN_ATTR_RESAMPLE_COMP_TYPE, compute)
      .set(CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &nan)
      .set(CUDNN_ATTR_RESAMPLE_PADDING_MODE, CUDNN_TYPE_PADDING_MODE, 1, &padding)
      .set(CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS, dims)
      .set(CUDNN_ATTR_RESAMPLE_WINDOW_DIMS, CUDNN_TYPE_FRACTION, dims, window.data())
      .set(CUDNN_ATTR_RESAMPLE_PRE_PADDINGS, CUDNN_TYPE_FRACTION, dims, before.data())
      .set(CUDNN_ATTR_RESAMPLE_POST_PADDINGS, CUDNN_TYPE_FRACTION, dims, after.data())
      .set(CUDNN_ATTR_RESAMPLE_STRIDES, CUDNN_TYPE_FRACTION, dims, stride.data())
      .finalise("the resampling is not valid");
  return resampling;
}

OperationGraph make_pooling_operation_graph(const PoolingProblem& p, const Device& device) {
  const bool forward = p.pass == Pass::fwd;
  Builder graph;
  size_t resampling = graph.keep(make_resampling(p));
  Descriptor operation(forward ? CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR
                               : CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR);
  operation.set(
      forward ? CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC : CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC,
      graph[resampling]);
  for (const SlotSpec& slot : pooling_slots_of(p)) {
    size_t tensor = graph.keep(make_tensor(slot.spec, slot.role, p.alignment));
    operation.set(attribute_of(slot.role, p.pass), graph[tensor]);
  }
  graph.add(std::move(operation), "cuDNN has no such resampling");
  return graph.make(device);
}

// nullopt if a graph can be made.
std::optional<Unsupported> pooling_why_unsupported(const PoolingProblem& p) {
  if (p.adaptive) {
    return Unsupported{"the output's sizes do not divide the input's: windows differ in size"};
  }
  if (p.dilation != Dims(p.spatial_dims(), 1)) {
    return Unsupported{"cuDNN's windows have no dilation"};
  }
  if (p.mode == PoolingMode::sum) return Unsupported{"the graph API averages, it does not sum"};
  if (p.mode == PoolingMode::avg_include && p.ceil) {
    return Unsupported{
        "if ceil mode has one more window, cuDNN counts what lies past the padding and PyTorch "
        "does "
        "not"};
  }
  constexpr int64_t kPlaces = 127;
  if (keeps_indices(p) && p.window_volume() > kPlaces) {
    return Unsupported{
        c10::str("a place in the window is kept in 8 bits, and it has ", p.window_volume())};
  }
  return std::nullopt;
}

// Checks that the reserve is what a forward of this backend left.
class PoolingPlan : public EnginePlan {
 public:
  PoolingPlan(const PoolingProblem& p, const Algorithm& algorithm, Engine engine)
      : EnginePlan(algorithm, std::move(engine), pooling_slots_of(p)),
        reads_indices_(p.pass == Pass::bwd && keeps_indices(p)),
        indices_(indices_of(p)) {}

  void run(Bindings& b) override {
    if (reads_indices_) {
      at::Tensor& left = b[Role::reserve];
      TORCH_CHECK(
          left.scalar_type() == indices_.dtype && left.sizes() == c10::IntArrayRef(indices_.sizes),
          algorithm.text(),
          ": the forward of this maximum ran another algorithm, so that there are no "
          "indices");
      // Hooks on saved tensors may give it back in another layout.
      if (left.strides() != c10::IntArrayRef(indices_.strides)) {
        left = at::empty_strided(indices_.sizes, indices_.strides, left.options()).copy_(left);
      }
    }
    EnginePlan::run(b);
  }

 private:
  const bool reads_indices_;
  const TensorSpec indices_;
};

std::shared_ptr<Plan> make_pooling_plan(const PoolingProblem& p, const Algorithm& algorithm,
                                        Engine engine) {
  return std::make_shared<PoolingPlan>(p, algorithm, std::move(engine));
}

const auto pooling_registered = register_graphs<PoolingProblem, pooling_why_unsupported,
                                                make_pooling_operation_graph, make_pooling_plan>();

}  // namespace
}  // namespace torch_cudnn_ext::graph
