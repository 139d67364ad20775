// Spatial transformers through cuDNN's classic API. Its grids are two-dimensional, and their
// outermost points are the centres of the corner pixels (align_corners).
#include <limits>

#include "backends/cudnn_legacy/descriptor.h"
#include "core/backend.h"
#include "core/errata.h"

namespace torch_cudnn_ext::legacy {
namespace {

using TransformerDescriptor =
    Descriptor<cudnnSpatialTransformerDescriptor_t, cudnnCreateSpatialTransformerDescriptor,
               cudnnDestroySpatialTransformerDescriptor>;

void set(const TransformerDescriptor& descriptor, c10::ScalarType dtype, const Dims& output) {
  check_cudnn(cudnnSetSpatialTransformerNdDescriptor(descriptor.get(), CUDNN_SAMPLER_BILINEAR,
                                                     cudnn_type(dtype), output.size(),
                                                     as_ints(output).data()),
              "cudnnSetSpatialTransformerNdDescriptor");
}

std::optional<Unsupported> why_transformer_is_unsupported(const TensorSpec& grid,
                                                          bool align_corners) {
  if (grid.sizes.size() != 4) return Unsupported{"cuDNN's spatial transformers are 2-D"};
  if (!align_corners) return Unsupported{"cuDNN's spatial transformers align corners"};
  if (grid.dtype == c10::ScalarType::BFloat16) {
    return Unsupported{"cuDNN's spatial transformers take f32, f64 and f16, not bf16"};
  }
  if (grid.numel() > std::numeric_limits<int>::max()) {  // PyTorch's own limit for calling cuDNN
    return Unsupported{"cuDNN's spatial transformers take grids of less than 2^31 elements"};
  }
  return std::nullopt;
}

class AffineGridPlan : public Plan {
 public:
  AffineGridPlan(const AffineGridProblem& p, const Algorithm& algorithm)
      // The gradient is summed atomically.
      : Plan(algorithm, p.pass == Pass::bwd ? Notes{Note::nondeterministic} : Notes{}, 0), p_(p) {
    set(transformer_, p.grid.dtype, {p.grid.sizes[0], 1, p.grid.sizes[1], p.grid.sizes[2]});
  }

  void run(Bindings& b) override {
    if (p_.pass == Pass::fwd) {
      const at::Tensor& theta = b[Role::x];
      void* grid = output(b, Role::grid, p_.grid, theta);
      check_cudnn(cudnnSpatialTfGridGeneratorForward(cudnn_handle(), transformer_.get(),
                                                     theta.const_data_ptr(), grid),
                  "cudnnSpatialTfGridGeneratorForward");
      return;
    }
    const at::Tensor& dgrid = b[Role::dgrid];
    void* dtheta = output(b, Role::dx, p_.theta, dgrid);
    check_cudnn(cudnnSpatialTfGridGeneratorBackward(cudnn_handle(), transformer_.get(),
                                                    dgrid.const_data_ptr(), dtheta),
                "cudnnSpatialTfGridGeneratorBackward");
  }

 private:
  const AffineGridProblem p_;
  TransformerDescriptor transformer_;
};

class GridSamplePlan : public Plan {
 public:
  GridSamplePlan(const GridSampleProblem& p, const Algorithm& algorithm, Notes notes)
      : Plan(algorithm, notes, unwanted_bytes(p)), p_(p), output_(p.output()), dx_(p.x) {
    set(transformer_, p.x.dtype, output_.sizes);
    set(x_, p.x);
    set(y_, output_);
  }

  void run(Bindings& b) override {
    const at::Tensor &x = b[Role::x], &grid = b[Role::grid];
    Scale one(1, p_.x.dtype), zero(0, p_.x.dtype);
    if (p_.pass == Pass::fwd) {
      void* y = legacy::output(b, Role::y, output_, x);
      check_cudnn(cudnnSpatialTfSamplerForward(cudnn_handle(), transformer_.get(), one.get(),
                                               x_.get(), x.const_data_ptr(), grid.const_data_ptr(),
                                               zero.get(), y_.get(), y),
                  "cudnnSpatialTfSamplerForward");
      return;
    }
    at::Tensor unwanted;  // cuDNN always writes dx
    if (!p_.input_gradient) unwanted = empty_on_cuda(dx_, x);
    void* dx =
        p_.input_gradient ? legacy::output(b, Role::dx, dx_, x) : unwanted.mutable_data_ptr();
    void* dgrid = legacy::output(b, Role::dgrid, p_.grid, grid);
    check_cudnn(cudnnSpatialTfSamplerBackward(cudnn_handle(), transformer_.get(), one.get(),
                                              x_.get(), x.const_data_ptr(), zero.get(), x_.get(),
                                              dx, one.get(), y_.get(), b[Role::dy].const_data_ptr(),
                                              grid.const_data_ptr(), zero.get(), dgrid),
                "cudnnSpatialTfSamplerBackward");
  }

 private:
  static int64_t unwanted_bytes(const GridSampleProblem& p) {
    return p.pass == Pass::bwd && !p.input_gradient ? p.x.nbytes() : 0;
  }

  const GridSampleProblem p_;
  const TensorSpec output_, dx_;
  TransformerDescriptor transformer_;
  TensorDescriptor x_, y_;
};

BuildResult build_affine_grid(const AffineGridProblem& p, const Algorithm& algorithm,
                              const Device& device) {
  if (auto reason = why_not_default(algorithm)) return *reason;
  if (auto reason = why_transformer_is_unsupported(p.grid, p.align_corners)) return *reason;
  // cuDNN puts a dimension's only point on the border, PyTorch in the middle.
  if (p.grid.sizes[1] == 1 || p.grid.sizes[2] == 1) {
    return Unsupported{"cuDNN's grids have at least two points a dimension"};
  }
  if (auto erratum = unsupported_by_erratum(p, algorithm, {}, device)) return *erratum;
  if (auto reason = why_unsupported(device)) return *reason;
  return std::make_shared<AffineGridPlan>(p, algorithm);
}

BuildResult build_grid_sample(const GridSampleProblem& p, const Algorithm& algorithm,
                              const Device& device) {
  constexpr int64_t kMaxChannels = 1024;  // PyTorch's own limit for calling cuDNN
  if (!algorithm.options.empty()) return Unsupported{"grid_sample has no options"};
  if (auto reason = why_transformer_is_unsupported(p.grid, p.align_corners)) return *reason;
  if (p.mode != SampleMode::bilinear) return Unsupported{"cuDNN samples bilinearly"};
  if (p.padding != SamplePadding::zeros) return Unsupported{"cuDNN pads with zeros"};
  if (p.x.strides != contiguous_strides(p.x.sizes)) return Unsupported{"cuDNN samples from nchw"};
  if (p.x.sizes[1] > kMaxChannels) {
    return Unsupported{c10::str("cuDNN samples at most ", kMaxChannels, " channels")};
  }
  if (auto reason = why_unsupported(device)) return *reason;
  Notes notes;
  // dx is summed by atomic additions, dgrid is not.
  if (p.pass == Pass::bwd && p.input_gradient) notes.add(Note::nondeterministic);
  return std::make_shared<GridSamplePlan>(p, algorithm, notes);
}

const RegisterBackendOperator<AffineGridProblem> registered_grid("legacy",
                                                                 only_default<AffineGridProblem>,
                                                                 build_affine_grid);
const RegisterBackendOperator<GridSampleProblem> registered_sample("legacy",
                                                                   every_name<GridSampleProblem>,
                                                                   build_grid_sample);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
