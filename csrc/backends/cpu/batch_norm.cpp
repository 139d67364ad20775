// Batch normalisation on the CPU in two ways, in float32 at least.
//
// two_pass takes the mean of the whole, then the squares around it; it normalises, then scales and
// shifts.
//
// chunked takes a share of the samples at a time and merges their statistics (Chan, Golub and
// LeVeque 1979); scale and shift are folded into one product and sum.
#include <ATen/ATen.h>

#include <algorithm>

#include "backends/cpu/plan.h"
#include "core/tensors.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;

constexpr int64_t kChunks = 8;

Tensor as_channel(const Tensor& statistic) { return statistic.view({1, -1, 1}); }

// Slices along the samples, or along space if there is one sample.
struct Chunks {
  int64_t dim, length, step;

  explicit Chunks(const Dims& sizes)
      : dim(sizes[0] > 1 ? 0 : 2),
        length(sizes[static_cast<int>(dim)]),
        step((length + kChunks - 1) / kChunks) {}

  template <class Body>
  void each(Body&& body) const {
    for (int64_t first = 0; first < length; first += step) {
      int64_t count = std::min(step, length - first);
      body([&, first, count](const Tensor& t) { return t.narrow(dim, first, count); });
    }
  }
};

class BatchNorm {
 public:
  BatchNorm(const BatchNormProblem& p, bool chunked)
      : p_(p), chunked_(chunked), chunks_(p.x.sizes), compute_(p.statistic_dtype()) {}

  void operator()(Bindings& b) const {
    if (p_.pass == BatchNormPass::bwd) {
      backward(b);
      return;
    }
    Tensor mean, var;
    if (p_.pass == BatchNormPass::infer) {
      mean = b[Role::running_mean];
      var = b[Role::running_var];
    } else {
      std::tie(mean, var) = chunked_ ? merged_statistics(b[Role::x]) : statistics(b[Role::x]);
    }
    Tensor invstd = (var + b.epsilon).rsqrt();
    give(b, Role::y, p_.x, normalised(b, mean, invstd));
    if (p_.pass == BatchNormPass::infer) return;
    TensorSpec statistic = p_.statistic();
    give(b, Role::mean, statistic, mean);
    give(b, Role::invstd, statistic, invstd);
    if (!p_.running) return;
    auto n = static_cast<double>(values());
    b[Role::running_mean].mul_(1 - b.momentum).add_(mean, b.momentum);
    b[Role::running_var].mul_(1 - b.momentum).add_(var * (n / (n - 1)), b.momentum);
  }

 private:
  int64_t values() const { return p_.x.sizes[0] * p_.x.sizes[2]; }

  // Mean and biased variance of each channel.
  std::tuple<Tensor, Tensor> statistics(const Tensor& input) const {
    Tensor x = input.to(compute_), mean = mean_of_channels(x);
    return {mean, mean_of_channels((x - as_channel(mean)).square_())};
  }

  std::tuple<Tensor, Tensor> merged_statistics(const Tensor& input) const {
    Tensor mean, squares;
    int64_t seen = 0;
    chunks_.each([&](auto slice) {
      Tensor x = slice(input).to(compute_);
      int64_t count = x.size(0) * x.size(2);
      Tensor here = mean_of_channels(x);
      Tensor here_squares = sum_of_channels((x - as_channel(here)).square_());
      if (seen == 0) {
        mean = here;
        squares = here_squares;
      } else {
        double share = static_cast<double>(count) / static_cast<double>(seen + count);
        Tensor apart = here - mean;
        mean = mean + apart * share;
        squares = squares + here_squares + apart.square_() * (share * static_cast<double>(seen));
      }
      seen += count;
    });
    return {mean, squares / values()};
  }

  Tensor normalised(const Bindings& b, const Tensor& mean, const Tensor& invstd) const {
    if (!chunked_) {
      Tensor y = (b[Role::x].to(compute_) - as_channel(mean)).mul_(as_channel(invstd));
      y = y.mul_(as_channel(b[Role::w])).add_(as_channel(b[Role::bias]));
      return finish(y, p_.z ? b[Role::z] : Tensor());
    }
    Tensor y = at::empty_strided(p_.x.sizes, p_.x.strides, b[Role::x].options());
    Tensor scale = invstd * b[Role::w], shift = b[Role::bias] - mean * scale;
    chunks_.each([&](auto slice) {
      Tensor part =
          at::addcmul(as_channel(shift), slice(b[Role::x]).to(compute_), as_channel(scale));
      slice(y).copy_(finish(part, p_.z ? slice(b[Role::z]) : Tensor()));
    });
    return y;
  }

  Tensor finish(const Tensor& y, const Tensor& z) const {
    if (z.defined()) y.add_(z);
    if (p_.activation == Activation::relu) y.relu_();
    return y.to(p_.x.dtype);
  }

  // Sums of dy and of dy times the normalised x, then dx.
  void backward(Bindings& b) const {
    Tensor mean = b[p_.train ? Role::mean : Role::running_mean];
    Tensor invstd = p_.train ? b[Role::invstd] : (b[Role::running_var] + b.epsilon).rsqrt_();
    Tensor dbias = at::zeros({p_.x.sizes[1]}, mean.options());
    Tensor dw = at::zeros_like(dbias);
    auto add = [&](const Tensor& x, const Tensor& dy) {
      Tensor gradient = dy.to(compute_);
      dbias.add_(sum_of_channels(gradient));
      Tensor normal = (x.to(compute_) - as_channel(mean)).mul_(as_channel(invstd));
      dw.add_(sum_of_channels(normal.mul_(gradient)));
    };
    if (chunked_) {
      chunks_.each([&](auto slice) { add(slice(b[Role::x]), slice(b[Role::dy])); });
    } else {
      add(b[Role::x], b[Role::dy]);
    }
    give(b, Role::dx, p_.x, data_gradient(b, mean, invstd, dw, dbias));
    give(b, Role::dw, p_.statistic(), dw);
    give(b, Role::dbias, p_.statistic(), dbias);
  }

  // dx = a dy + s x + c, with numbers a, s and c for each channel; term by term, or folded.
  Tensor data_gradient(const Bindings& b, const Tensor& mean, const Tensor& invstd,
                       const Tensor& dw, const Tensor& dbias) const {
    Tensor scale = b[Role::w] * invstd;
    if (!chunked_) {
      Tensor dx = b[Role::dy].to(compute_, false, true);
      if (p_.train) {
        Tensor normal = (b[Role::x].to(compute_) - as_channel(mean)).mul_(as_channel(invstd));
        dx.sub_(as_channel(dbias / values())).sub_(normal.mul_(as_channel(dw / values())));
      }
      return dx.mul_(as_channel(scale)).to(p_.x.dtype);
    }
    Tensor dx = at::empty_strided(p_.x.sizes, p_.x.strides, b[Role::x].options());
    Tensor slope = -scale * invstd * dw / values();
    Tensor shift = -scale * dbias / values() - slope * mean;
    chunks_.each([&](auto slice) {
      Tensor part = slice(b[Role::dy]).to(compute_) * as_channel(scale);
      if (p_.train) {
        part.addcmul_(slice(b[Role::x]).to(compute_), as_channel(slope)).add_(as_channel(shift));
      }
      slice(dx).copy_(part);
    });
    return dx;
  }

  const BatchNormProblem p_;
  const bool chunked_;
  const Chunks chunks_;
  const c10::ScalarType compute_;
};

constexpr const char* kBatchNormNames[] = {"two_pass", "chunked"};

BuildResult build_batch_norm_plan(const BatchNormProblem& p, const Algorithm& algorithm) {
  bool chunked = algorithm.name == "chunked";
  return make_plan(algorithm, {}, BatchNorm(p, chunked));
}

const auto batch_norm_registered =
    cpu::register_named<BatchNormProblem, kBatchNormNames, build_batch_norm_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
