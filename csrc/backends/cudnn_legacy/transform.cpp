// Conversions between layouts through cuDNN's classic API: one algorithm.
#include <algorithm>
#include <climits>

#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "cudnn/problems.h"

namespace torch_cudnn_ext::legacy {
namespace {

class TransformPlan : public Plan {
 public:
  TransformPlan(const TransformProblem& p, const Algorithm& algorithm)
      : Plan(algorithm, {}, 0), p_(p) {
    set(x_, as_image(p.x));
    set(y_, as_image(p.y));
  }

  void run(Bindings& b) override {
    const at::Tensor& x = b[Role::x];
    void* y = output(b, Role::y, p_.y, x);
    Scale one(1, p_.x.dtype), zero(0, p_.x.dtype);
    check_cudnn(cudnnTransformTensor(cudnn_handle(), one.get(), x_.get(), x.const_data_ptr(),
                                     zero.get(), y_.get(), y),
                "cudnnTransformTensor");
  }

 private:
  // cuDNN's kernels take at least four dimensions.
  static TensorSpec as_image(const TensorSpec& spec) {
    return spec.sizes.size() == 3 ? lift_to_plane(spec) : spec;
  }

  const TransformProblem p_;
  TensorDescriptor x_, y_;
};

BuildResult build_transform_plan(const TransformProblem& p, const Algorithm& algorithm,
                                 const Device& device) {
  if (auto reason = why_not_default(algorithm)) return *reason;
  if (p.x.dtype != p.y.dtype) return Unsupported{"cudnnTransformTensor converts no types"};
  if (std::max(p.x.extent(), p.y.extent()) > INT_MAX) {
    return Unsupported{"the classic API counts elements in 32 bits"};
  }
  if (p.alignment < 16) {
    return Unsupported{"cudnnTransformTensor was not tested on tensors not aligned to 16 bytes"};
  }
  if (auto reason = why_unsupported(device)) return *reason;
  return std::make_shared<TransformPlan>(p, algorithm);
}

const RegisterBackendOperator<TransformProblem> transform_registered("legacy",
                                                                     only_default<TransformProblem>,
                                                                     build_transform_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
