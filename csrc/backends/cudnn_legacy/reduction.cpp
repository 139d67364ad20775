// Reductions through cuDNN's classic API: one algorithm, with indices for minima and maxima.
#include <ATen/ops/empty.h>

#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "core/errata.h"
#include "cuda/workspace.h"
#include "cudnn/problems.h"

namespace torch_cudnn_ext::legacy {
namespace {

using ReduceDescriptor =
    Descriptor<cudnnReduceTensorDescriptor_t, cudnnCreateReduceTensorDescriptor,
               cudnnDestroyReduceTensorDescriptor>;

// cuDNN's kernels take at least four dimensions.
TensorSpec with_four_dims(const TensorSpec& spec) {
  Dims sizes(std::max(0, 4 - spec.sizes.size()), 1);
  for (int64_t size : spec.sizes) sizes.push_back(size);
  return {spec.dtype, sizes, contiguous_strides(sizes)};
}

struct ReductionDescriptors {
  explicit ReductionDescriptors(const ReduceProblem& p) {
    set(x, with_four_dims(p.x));
    set(y, with_four_dims(p.output()));
    auto compute = cudnn_type(compute_dtype(p.x.dtype));
    check_cudnn(
        cudnnSetReduceTensorDescriptor(
            reduce.get(), cudnn_reduction(p.kind), compute, CUDNN_PROPAGATE_NAN,
            p.indices ? CUDNN_REDUCE_TENSOR_FLATTENED_INDICES : CUDNN_REDUCE_TENSOR_NO_INDICES,
            CUDNN_32BIT_INDICES),
        "cudnnSetReduceTensorDescriptor");
  }
  TensorDescriptor x, y;
  ReduceDescriptor reduce;
};

struct Needs {
  size_t workspace_bytes = 0, indices_bytes = 0;
};

class ReducePlan : public Plan {
 public:
  ReducePlan(const ReduceProblem& p, const Algorithm& algorithm, Notes notes,
             std::unique_ptr<ReductionDescriptors> descriptors, Needs needs)
      : Plan(algorithm, notes, static_cast<int64_t>(needs.workspace_bytes + needs.indices_bytes)),
        p_(p),
        descriptors_(std::move(descriptors)),
        needs_(needs) {}

  void run(Bindings& b) override {
    const at::Tensor& x = b[Role::x];
    TensorSpec spec = p_.output();
    void* y = output(b, Role::y, spec, x);
    c10::DataPtr workspace;
    if (needs_.workspace_bytes > 0) workspace = allocate_workspace(needs_.workspace_bytes);
    at::Tensor indices;  // cuDNN's are unsigned 32-bit integers
    if (p_.indices) {
      auto count = static_cast<int64_t>((needs_.indices_bytes + 3) / 4);
      indices = at::empty({std::max(count, spec.numel())}, x.options().dtype(at::kInt));
    }
    Scale one(1, p_.x.dtype), zero(0, p_.x.dtype);
    check_cudnn(
        cudnnReduceTensor(cudnn_handle(), descriptors_->reduce.get(),
                          p_.indices ? indices.data_ptr() : nullptr, needs_.indices_bytes,
                          workspace.get(), needs_.workspace_bytes, one.get(), descriptors_->x.get(),
                          x.const_data_ptr(), zero.get(), descriptors_->y.get(), y),
        "cudnnReduceTensor");
    if (!p_.indices) return;
    give(b, Role::indices, {at::kLong, spec.sizes, spec.strides},
         indices.narrow(0, 0, spec.numel()).to(at::kLong).view(spec.sizes));
  }

 private:
  const ReduceProblem p_;
  const std::unique_ptr<ReductionDescriptors> descriptors_;
  const Needs needs_;
};

BuildResult build_reduction_plan(const ReduceProblem& p, const Algorithm& algorithm,
                                 const Device& device) {
  if (auto reason = why_not_default(algorithm)) return *reason;
  if (p.x.dtype == at::kBFloat16) return Unsupported{"cuDNN reduces no bfloat16 data"};
  if (p.reduced_count() == 1) return Unsupported{"cuDNN has no reduction of a single element each"};
  if (auto reason = why_unsupported(device)) return *reason;
  auto descriptors = std::make_unique<ReductionDescriptors>(p);
  Needs needs;
  auto status = cudnnGetReductionWorkspaceSize(cudnn_handle(), descriptors->reduce.get(),
                                               descriptors->x.get(), descriptors->y.get(),
                                               &needs.workspace_bytes);
  if (status == CUDNN_STATUS_SUCCESS && p.indices) {
    status = cudnnGetReductionIndicesSize(cudnn_handle(), descriptors->reduce.get(),
                                          descriptors->x.get(), descriptors->y.get(),
                                          &needs.indices_bytes);
  }
  if (status != CUDNN_STATUS_SUCCESS) return unsupported(status, cudnn_status_text(status));
  Notes notes;
  add_notes_of_errata(notes, p, algorithm, device);
  return std::make_shared<ReducePlan>(p, algorithm, notes, std::move(descriptors), needs);
}

const RegisterBackendOperator<ReduceProblem> reduction_registered("legacy",
                                                                  only_default<ReduceProblem>,
                                                                  build_reduction_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
