#include "backends/aten/matmul_convolution.h"

#include <ATen/ATen.h>
#include <ATen/TensorGeometry.h>
#include <c10/util/accumulate.h>

#include "core/tensors.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::aten {
namespace {

using at::Tensor;

// Whether each window ends before the next begins, and none reaches outside of x.
bool has_separate_windows(const ConvolutionProblem& p) {
  for (int i = 0; i < p.spatial_dims(); ++i) {
    int64_t extent = (p.w.sizes[i + 2] - 1) * p.dilation[i] + 1;
    if (p.padding[i] != 0 || (extent > p.stride[i] && p.y.sizes[i + 2] > 1)) return false;
  }
  return true;
}

// What is under the windows, as dimensions of x in the order of its matrix.
struct Windows {
  Dims sizes, strides;
  bool packed;  // x is that matrix

  Windows(const ConvolutionProblem& p, Matrices matrices) {
    auto add = [this](int64_t size, int64_t stride) {
      sizes.push_back(size);
      strides.push_back(stride);
    };
    auto add_places = [&] {
      for (int i = 2; i < p.x.sizes.size(); ++i) {
        add(p.y.sizes[i], p.x.strides[i] * p.stride[i - 2]);
      }
    };
    auto add_insides = [&] {
      for (int i = 2; i < p.x.sizes.size(); ++i) {
        add(p.w.sizes[i], p.x.strides[i] * p.dilation[i - 2]);
      }
    };
    auto add_channels = [&] { add(p.x.sizes[1], p.x.strides[1]); };
    add(p.x.sizes[0], p.x.strides[0]);
    if (matrices == Matrices::rows) add_places();
    bool channels_first = p.w.strides == contiguous_strides(p.w.sizes);
    if (channels_first) add_channels();
    add_insides();
    if (!channels_first) add_channels();
    if (matrices == Matrices::planes) add_places();
    bool covers_x = c10::multiply_integers(sizes.begin(), sizes.end()) == p.x.numel();
    packed = covers_x && at::geometry_is_contiguous(sizes, strides);
  }

  Tensor of(const Tensor& x) const { return strided_view(x, sizes, strides); }
};

// result = alpha * first @ second + beta * result, of two or three dimensions.
void matmul_convolution_product(Tensor result, const Tensor& first, const Tensor& second,
                                double alpha, double beta) {
  // PyTorch 2.11 leaves some batched products of half types unwritten where both are 0.
  if (alpha == 0 && beta == 0) return void(result.zero_());
  bool plain = alpha == 1 && beta == 0;
  if (result.dim() == 2) {
    plain ? at::mm_out(result, first, second)
          : at::addmm_out(result, result, first, second, beta, alpha);
  } else {
    plain ? at::bmm_out(result, first, second)
          : at::baddbmm_out(result, result, first, second, beta, alpha);
  }
}

class MatmulConvolution : public Plan {
 public:
  MatmulConvolution(const ConvolutionProblem& p, const Algorithm& algorithm, Notes notes,
                    Matrices matrices)
      : Plan(algorithm, notes, std::nullopt), p_(p), matrices_(matrices), windows_(p, matrices) {}

  void run(Bindings& b) override {
    Role role = result_role(p_.pass);
    output_tensor(b, role, p_.result(), b[role == Role::y ? Role::x : Role::y]);
    Tensor& x = b[Role::x];
    if (windows_.packed) return multiply(b, x, b.beta);
    Tensor under_windows = windows_.of(x);
    if (p_.pass != ConvolutionPass::bwd_data) {
      return multiply(b, under_windows.contiguous(), b.beta);
    }
    Tensor gradient = at::empty(windows_.sizes, x.options());
    multiply(b, gradient, 0);
    if (b.beta == 0) {
      if (gradient.numel() < x.numel()) x.zero_();  // outside of the windows
      under_windows.copy_(gradient);
    } else {
      if (b.beta != 1) x.mul_(b.beta);
      under_windows.add_(gradient);
    }
  }

 private:
  // `x` is what is under the windows, packed; it is the result if its gradient is.
  void multiply(Bindings& b, const Tensor& x, double beta) const {
    matrices_ == Matrices::rows ? multiply_rows(b, x, beta) : multiply_planes(b, x, beta);
  }

  // [rows, columns]: one row a window; of the weight, one a channel of y.
  static Tensor rows(const Tensor& t, int64_t columns) {
    return strided_view(t, {t.numel() / columns, columns}, {columns, 1});
  }
  // [images, rows, windows]
  static Tensor planes(const Tensor& t, int64_t rows) {
    int64_t n = t.size(0), windows = t.numel() / (n * rows);
    return strided_view(t, {n, rows, windows}, {rows * windows, windows, 1});
  }

  void multiply_rows(Bindings& b, const Tensor& under_windows, double beta) const {
    Tensor x = rows(under_windows, columns_), w = rows(b[Role::w], columns_),
           y = rows(b[Role::y], p_.w.sizes[0]);
    switch (p_.pass) {
      case ConvolutionPass::fwd:
        if (p_.bias) {
          at::addmm_out(y, b[Role::bias], x, w.t());
        } else {
          matmul_convolution_product(y, x, w.t(), b.alpha, beta);
        }
        return add_z_and_activate(p_, b[Role::y], b);
      case ConvolutionPass::bwd_data:
        return matmul_convolution_product(x, y, w, b.alpha, beta);
      case ConvolutionPass::bwd_filter:
        return matmul_convolution_product(w, y.t(), x, b.alpha, beta);
    }
  }

  void multiply_planes(Bindings& b, const Tensor& under_windows, double beta) const {
    Tensor x = planes(under_windows, columns_), w = rows(b[Role::w], columns_),
           y = planes(b[Role::y], p_.w.sizes[0]);
    Tensor each = w.expand({x.size(0), -1, -1});  // the same for each image
    switch (p_.pass) {
      case ConvolutionPass::fwd:
        matmul_convolution_product(y, each, x, b.alpha, beta);
        return add_epilogue(p_, b[Role::y], b);
      case ConvolutionPass::bwd_data:
        return matmul_convolution_product(x, each.transpose(1, 2), y, b.alpha, beta);
      case ConvolutionPass::bwd_filter:
        Tensor sum = at::bmm(y, x.transpose(1, 2)).sum(0);
        if (beta == 0) {
          w.copy_(b.alpha == 1 ? sum : sum.mul_(b.alpha));
        } else {
          if (beta != 1) w.mul_(beta);
          w.add_(sum, b.alpha);
        }
    }
  }

  const ConvolutionProblem p_;
  const Matrices matrices_;
  const Windows windows_;
  const int64_t columns_ = p_.w.numel() / p_.w.sizes[0];  // of the weight's matrix
};

}  // namespace

std::optional<Matrices> matrices_of(const ConvolutionProblem& p) {
  bool turned = p.mode == ConvolutionMode::conv && !is_one_pixel(p.w.sizes);
  if (!has_separate_windows(p) || p.groups != 1 || !is_packed(p.w) || turned) return std::nullopt;
  auto lie = [&](auto&& strides) {
    return p.x.strides == strides(p.x.sizes) && p.y.strides == strides(p.y.sizes);
  };
  bool contiguous = lie(contiguous_strides);
  if (lie(channels_last_strides) || (contiguous && is_one_pixel(p.y.sizes))) return Matrices::rows;
  return contiguous ? std::optional(Matrices::planes) : std::nullopt;
}

std::shared_ptr<Plan> make_matmul_convolution(const ConvolutionProblem& p,
                                              const Algorithm& algorithm, Notes notes,
                                              Matrices matrices) {
  return std::make_shared<MatmulConvolution>(p, algorithm, notes, matrices);
}

}  // namespace torch_cudnn_ext::aten
