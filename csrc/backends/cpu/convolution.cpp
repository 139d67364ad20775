// Three ways of convolving on the CPU, written on ATen: they make tuning, pinning and profiling
// real work on a machine without a GPU.
//
// im2col lays patches side by side in a matrix, then takes one matrix product (Chellapilla et al.
// 2006).
//
// direct takes one matrix product for each tap of the kernel, on a shifted view: no copy of the
// patches.
//
// fft takes products in the frequency domain (Mathieu et al. 2013); stride is taken out of the full
// result.
//
// Narrow types are computed in float32.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <limits>

#include "backends/cpu/plan.h"
#include "core/errors.h"
#include "problems/tensor_steps.h"

namespace torch_cudnn_ext {
namespace {

using at::Tensor;
using at::indexing::Slice;
using Index = std::vector<at::indexing::TensorIndex>;

// All three passes on tensors in the compute type: forward takes (x, w), bwd_data (dy, w),
// bwd_filter (x, dy).
class CpuConvolution : public Plan {
 public:
  CpuConvolution(const ConvolutionProblem& p, const Algorithm& algorithm, int64_t workspace)
      : Plan(algorithm, algorithm.name == "fft" ? Notes{Note::fft} : Notes{}, workspace), p_(p) {}

  void run(Bindings& b) override {
    Tensor result;
    switch (p_.pass) {
      case ConvolutionPass::fwd:
        result = forward(input(b, Role::x), kernel(b));
        break;
      case ConvolutionPass::bwd_data:
        result = backward_data(input(b, Role::y), kernel(b));
        break;
      case ConvolutionPass::bwd_filter:
        result = backward_filter(input(b, Role::x), input(b, Role::y)).reshape(p_.w.sizes);
        result = flip_for_mode(p_, result);
        break;
    }
    store(b, result);
  }

 protected:
  virtual Tensor forward(const Tensor& x, const Tensor& w) = 0;
  virtual Tensor backward_data(const Tensor& dy, const Tensor& w) = 0;
  virtual Tensor backward_filter(const Tensor& x, const Tensor& dy) = 0;

  int spatial() const { return p_.spatial_dims(); }

  // The part of padded x that one tap of the kernel reads, over all output positions.
  Index window(const Dims& tap) const {
    Index index{Slice(), Slice()};
    for (int i = 0; i < spatial(); ++i) {
      int64_t first = tap[i] * p_.dilation[i];
      int64_t last = first + (p_.y.sizes[i + 2] - 1) * p_.stride[i] + 1;
      index.emplace_back(Slice(first, last, p_.stride[i]));
    }
    return index;
  }

  template <class Body>
  void for_each_tap(Body&& body) const {
    Dims tap(spatial(), 0);
    while (true) {
      check_interrupt_if_due();
      body(tap);
      int i = spatial() - 1;
      for (; i >= 0; --i) {
        if (++tap[i] < p_.w.sizes[i + 2]) break;
        tap[i] = 0;
      }
      if (i < 0) return;
    }
  }

  static Tensor at_tap(const Tensor& w, const Dims& tap) {
    Index index{Slice(), Slice()};
    for (int64_t position : tap) index.emplace_back(position);
    return w.index(index);
  }

  Tensor pad(const Tensor& x) const {
    std::vector<int64_t> amounts;
    for (int i = spatial() - 1; i >= 0; --i) {
      amounts.push_back(p_.padding[i]);
      amounts.push_back(p_.padding[i]);
    }
    return at::constant_pad_nd(x, amounts);
  }

  Tensor empty_padded(const Tensor& like) const {
    Dims sizes = p_.x.sizes;
    for (int i = 0; i < spatial(); ++i) sizes[i + 2] += 2 * p_.padding[i];
    return at::zeros(sizes, like.options());
  }

  Tensor unpad(const Tensor& padded) const {
    Index index{Slice(), Slice()};
    for (int i = 0; i < spatial(); ++i) {
      index.emplace_back(Slice(p_.padding[i], p_.padding[i] + p_.x.sizes[i + 2]));
    }
    return padded.index(index);
  }

  // [N, C, space] as [N, groups, C / groups, positions].
  Tensor by_group(const Tensor& t) const {
    return t.reshape({t.size(0), p_.groups, t.size(1) / p_.groups, -1});
  }

  const ConvolutionProblem p_;

 private:
  Tensor input(const Bindings& b, Role role) const { return b[role].to(p_.compute).contiguous(); }
  Tensor kernel(const Bindings& b) const {
    return flip_for_mode(p_, input(b, Role::w)).contiguous();
  }

  void store(Bindings& b, const Tensor& result) const {
    Role role = result_role(p_.pass);
    bool fresh = !b[role].defined();
    Tensor& out = output_tensor(b, role, p_.result(), result);
    Tensor value = result.reshape(p_.result().sizes);
    add_epilogue(p_, value, b);
    if (p_.accumulate == Accumulate::none) {
      out.copy_(value);
    } else if (fresh || b.beta == 0) {
      out.copy_(value.mul(b.alpha));
    } else {
      out.copy_(value.mul(b.alpha).add_(out.to(p_.compute), b.beta));
    }
  }
};

class Im2col : public CpuConvolution {
 public:
  using CpuConvolution::CpuConvolution;

 private:
  // [N, groups, C / groups * taps, positions]
  Tensor columns(const Tensor& x) const {
    Tensor padded = pad(x);
    std::vector<Tensor> taps;
    for_each_tap([&](const Dims& tap) { taps.push_back(padded.index(window(tap)).flatten(2)); });
    Tensor stacked = at::stack(taps, 2);  // [N, C, taps, positions]
    return stacked.reshape({x.size(0), p_.groups, -1, stacked.size(3)});
  }
  Tensor kernel_matrix(const Tensor& w) const {
    return w.reshape({p_.groups, w.size(0) / p_.groups, -1});
  }

  Tensor forward(const Tensor& x, const Tensor& w) override {
    return at::matmul(kernel_matrix(w), columns(x));
  }

  Tensor backward_data(const Tensor& dy, const Tensor& w) override {
    Tensor cols = at::matmul(kernel_matrix(w).transpose(1, 2), by_group(dy));
    cols = cols.reshape({dy.size(0), p_.x.sizes[1], -1, cols.size(3)});
    Tensor padded = empty_padded(dy);
    std::vector<int64_t> shape{dy.size(0), p_.x.sizes[1]};
    for (int i = 0; i < spatial(); ++i) shape.push_back(p_.y.sizes[i + 2]);
    int64_t number = 0;
    for_each_tap([&](const Dims& tap) {
      padded.index(window(tap)).add_(cols.select(2, number++).reshape(shape));
    });
    return unpad(padded);
  }

  Tensor backward_filter(const Tensor& x, const Tensor& dy) override {
    return at::matmul(by_group(dy), columns(x).transpose(2, 3)).sum(0);
  }
};

class Direct : public CpuConvolution {
 public:
  using CpuConvolution::CpuConvolution;

 private:
  Tensor tap_matrix(const Tensor& w, const Dims& tap) const {
    return at_tap(w, tap).reshape({p_.groups, w.size(0) / p_.groups, w.size(1)});
  }

  Tensor forward(const Tensor& x, const Tensor& w) override {
    Tensor padded = pad(x);
    Tensor sum;
    for_each_tap([&](const Dims& tap) {
      Tensor term = at::matmul(tap_matrix(w, tap), by_group(padded.index(window(tap))));
      sum = sum.defined() ? sum.add_(term) : term;
    });
    return sum;
  }

  Tensor backward_data(const Tensor& dy, const Tensor& w) override {
    Tensor padded = empty_padded(dy);
    Tensor grouped = by_group(dy);
    for_each_tap([&](const Dims& tap) {
      Tensor target = padded.index(window(tap));
      Tensor term = at::matmul(tap_matrix(w, tap).transpose(1, 2), grouped);
      target.add_(term.reshape(target.sizes()));
    });
    return unpad(padded);
  }

  Tensor backward_filter(const Tensor& x, const Tensor& dy) override {
    Tensor padded = pad(x);
    Tensor grouped = by_group(dy);
    Tensor dw = at::empty(p_.w.sizes, x.options());
    for_each_tap([&](const Dims& tap) {
      Tensor patch = by_group(padded.index(window(tap)));
      Tensor term = at::matmul(grouped, patch.transpose(2, 3)).sum(0);
      at_tap(dw, tap).copy_(term.reshape({p_.w.sizes[0], p_.w.sizes[1]}));
    });
    return dw;
  }
};

class Fft : public CpuConvolution {
 public:
  using CpuConvolution::CpuConvolution;

 private:
  // Room for the padded x; every product below is a correlation that does not wrap within it.
  std::vector<int64_t> room() const {
    std::vector<int64_t> sizes;
    for (int i = 0; i < spatial(); ++i) sizes.push_back(p_.x.sizes[i + 2] + 2 * p_.padding[i]);
    return sizes;
  }
  Tensor transform(const Tensor& t) const {
    std::vector<int64_t> axes;
    for (int i = 0; i < spatial(); ++i) axes.push_back(t.dim() - spatial() + i);
    return at::fft_rfftn(t, room(), axes);
  }
  Tensor back(const Tensor& t) const {
    std::vector<int64_t> axes;
    for (int i = 0; i < spatial(); ++i) axes.push_back(t.dim() - spatial() + i);
    return at::fft_irfftn(t, room(), axes);
  }
  Tensor grouped(const Tensor& t) const {
    std::vector<int64_t> sizes{t.size(0), p_.groups, t.size(1) / p_.groups};
    for (int i = 0; i < spatial(); ++i) sizes.push_back(t.size(i + 2));
    return t.reshape(sizes);
  }
  // Zeros between the values: a kernel with dilation, a gradient with stride.
  Tensor spread(const Tensor& t, const Dims& step) const {
    Dims sizes = Dims(t.sizes());
    Index index{Slice(), Slice()};
    for (int i = 0; i < spatial(); ++i) {
      sizes[i + 2] = (t.size(i + 2) - 1) * step[i] + 1;
      index.emplace_back(Slice(c10::nullopt, c10::nullopt, step[i]));
    }
    Tensor out = at::zeros(sizes, t.options());
    out.index(index).copy_(t);
    return out;
  }
  // Sums over one index of products at each frequency: a batch of small matrix products.
  Tensor product(const char* equation, const Tensor& a, const Tensor& b) const {
    return at::einsum(equation, {a.flatten(3), b.flatten(3)});
  }
  Tensor unflatten_like(const Tensor& t, const Tensor& spectrum) const {
    std::vector<int64_t> sizes{t.size(0), t.size(1) * t.size(2)};
    for (int i = 0; i < spatial(); ++i) {
      sizes.push_back(spectrum.size(spectrum.dim() - spatial() + i));
    }
    return t.reshape(sizes);
  }
  Index every(const Dims& count, const Dims& step) const {
    Index index{Slice(), Slice()};
    for (int i = 0; i < spatial(); ++i) {
      index.emplace_back(Slice(0, (count[i + 2] - 1) * step[i] + 1, step[i]));
    }
    return index;
  }
  // Kernels as [groups, K / groups, C / groups, space].
  Tensor kernel_spectrum(const Tensor& w) const {
    Tensor wide = spread(w, p_.dilation);
    std::vector<int64_t> sizes{p_.groups, w.size(0) / p_.groups, w.size(1)};
    for (int i = 0; i < spatial(); ++i) sizes.push_back(wide.size(i + 2));
    return transform(wide.reshape(sizes));
  }

  Tensor forward(const Tensor& x, const Tensor& w) override {
    Tensor fx = transform(grouped(pad(x)));
    Tensor sum = product("ngcf,gkcf->ngkf", fx, kernel_spectrum(w).conj());
    return back(unflatten_like(sum, fx)).index(every(p_.y.sizes, p_.stride));
  }

  Tensor backward_data(const Tensor& dy, const Tensor& w) override {
    Tensor fy = transform(grouped(spread(dy, p_.stride)));
    Tensor sum = product("ngkf,gkcf->ngcf", fy, kernel_spectrum(w));
    return unpad(back(unflatten_like(sum, fy)));
  }

  Tensor backward_filter(const Tensor& x, const Tensor& dy) override {
    Tensor fx = transform(grouped(pad(x)));
    Tensor fy = transform(grouped(spread(dy, p_.stride)));
    Tensor sum = product("ngcf,ngkf->gkcf", fx, fy.conj());
    std::vector<int64_t> sizes{p_.w.sizes[0], p_.w.sizes[1]};
    for (int i = 0; i < spatial(); ++i) sizes.push_back(fx.size(fx.dim() - spatial() + i));
    return back(sum.reshape(sizes)).index(every(p_.w.sizes, p_.dilation));
  }
};

// What each allocates in addition to its result: the columns, one shifted product, or three
// spectra.
int64_t workspace_of(const ConvolutionProblem& p, const std::string& name) {
  auto real = [](int64_t n) { return static_cast<double>(n); };  // products may exceed integers
  double positions = real(p.y.numel() / p.y.sizes[1]);           // over batch and space
  double elements = 0;
  if (name == "im2col") {
    elements = positions * real(p.x.sizes[1]) * real(p.w.numel() / (p.w.sizes[0] * p.w.sizes[1]));
  } else if (name == "direct") {
    elements = positions * real(std::max(p.x.sizes[1], p.w.sizes[0]));
  } else {
    elements = real(p.x.sizes[0]) * real(p.x.sizes[1]) + real(p.w.sizes[0]) * real(p.w.sizes[1]) +
               real(p.y.sizes[0]) * real(p.y.sizes[1]);
    for (int i = 0; i < p.spatial_dims(); ++i) {
      elements *= real(p.x.sizes[i + 2]) + 2 * real(p.padding[i]);
    }
  }
  double bytes = elements * real(static_cast<int64_t>(c10::elementSize(p.compute)));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return bytes < real(kMost) ? static_cast<int64_t>(bytes) : kMost;
}

constexpr const char* kConvolutionNames[] = {"im2col", "direct", "fft"};

BuildResult build_convolution_plan(const ConvolutionProblem& p, const Algorithm& algorithm) {
  if (p.compute != at::kFloat && p.compute != at::kDouble) {
    return Unsupported{
        c10::str("the cpu backend computes in f32 or f64, not ", dtype_text(p.compute))};
  }
  int64_t workspace = workspace_of(p, algorithm.name);
  if (algorithm.name == "im2col") return std::make_shared<Im2col>(p, algorithm, workspace);
  if (algorithm.name == "direct") return std::make_shared<Direct>(p, algorithm, workspace);
  return std::make_shared<Fft>(p, algorithm, workspace);
}

const auto convolution_registered =
    cpu::register_named<ConvolutionProblem, kConvolutionNames, build_convolution_plan>();

}  // namespace
}  // namespace torch_cudnn_ext
