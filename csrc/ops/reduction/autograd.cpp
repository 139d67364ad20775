// Gradients of reductions, and autocast.
#include "ops/autograd.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <numeric>

#include "ops/call.h"
#include "ops/reduction/reduction.h"

namespace torch_cudnn_ext::reduction {
namespace {

// The product of all other elements along the reduced dimensions, without a division.
Tensor product_of_others(const Tensor& x, const std::vector<int64_t>& dims) {
  if (dims.empty() || x.sym_numel() == 0) return at::ones_like(x);
  std::vector<int64_t> last(dims.size());
  std::iota(last.begin(), last.end(), x.dim() - static_cast<int64_t>(dims.size()));
  Tensor moved = x.movedim(dims, last);
  Tensor rows = moved.flatten(last[0]);
  auto products_before = [](const Tensor& t) {
    return at::constant_pad_nd(t, {1, -1}, 1).cumprod(-1);
  };
  Tensor others = products_before(rows) * products_before(rows.flip(-1)).flip(-1);
  return others.reshape_symint(moved.sym_sizes())
      .movedim(last, dims)
      .contiguous(x.suggest_memory_format());
}

struct ReduceGradient {
  static constexpr const char* kName = "TorchCudnnExtReduceBackward";
  static constexpr size_t kInputs = 1;
  std::string kind;
  std::vector<int64_t> dims;
  std::vector<SymInt> sizes;  // of the input

  auto attributes() { return std::tie(kind, dims, sizes); }

  // A result with its reduced dimensions of size 1.
  Tensor spread(const Tensor& t) const {
    std::vector<SymInt> kept = sizes;
    for (int64_t dim : dims) kept[dim] = 1;
    return t.reshape_symint(kept);
  }
  SymInt count() const {
    SymInt count = 1;
    for (int64_t dim : dims) count *= sizes[dim];
    return count;
  }

  // What each of several equal extremes gets. Their number may be too large for float16.
  Tensor share_of(const Tensor& g, const Tensor& hit) const {
    Tensor share = g.to(compute_dtype(g.scalar_type())) / hit.sum(dims, true);
    return share.to(g.scalar_type());
  }

  // `saved` is x and y if the gradient reads them. Equal extremes share it, as in PyTorch.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    Tensor g = spread(grads[0]);
    ReduceKind op = kind_of("reduce", kind);
    if (op == ReduceKind::add) return {g.expand_symint(sizes)};
    if (op == ReduceKind::mean) return {g.expand_symint(sizes) / count()};
    const Tensor& x = saved[0];
    Tensor y = spread(saved[1]);
    switch (op) {
      case ReduceKind::min:
      case ReduceKind::max: {
        Tensor hit = x == y;
        return {hit * share_of(g, hit)};
      }
      case ReduceKind::absmax: {
        Tensor hit = x.abs() == y;
        return {hit * x.sign() * share_of(g, hit)};
      }
      case ReduceKind::norm1:
        return {g * x.sign()};
      case ReduceKind::norm2: {
        Tensor zero = y == 0;
        // x / y has no element above 1; g / y may overflow.
        return {g * (x / y.masked_fill(zero, 1)).masked_fill(zero, 0)};
      }
      default: {
        Tensor zero = x == 0;
        Tensor quotient = y / x.masked_fill(zero, 1);
        if (op == ReduceKind::mul_no_zeros) return {(g * quotient).masked_fill(zero, 0)};
        // The product of the others may overflow though that of all does not, so it is used only
        // if there is a zero.
        Tensor any_zero = dims.empty() ? zero : zero.any(dims, true);
        Tensor others = product_of_others(at::where(any_zero, x, 1), dims);
        return {g * at::where(any_zero, others, quotient)};
      }
    }
  }
};

Tensor forward_autograd(c10::DispatchKeySet keys, const ReduceArgs& a) {
  return run_with_gradient<ReduceGradient>(
      {a.input}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto& results) {
        node.gradient = {std::string(a.kind), check_dims(a.kName, a.input, a.dim),
                         a.input.sym_sizes().vec()};
        ReduceKind kind = kind_of(a.kName, a.kind);
        if (kind == ReduceKind::add || kind == ReduceKind::mean) return;
        save_input(node, a.input);
        save_result(node, results[0]);
      });
}

// The gradient goes to the element that the index names.
struct IndexedGradient {
  static constexpr const char* kName = "TorchCudnnExtReduceWithIndicesBackward";
  static constexpr size_t kInputs = 1;
  std::vector<int64_t> dims;
  std::vector<SymInt> sizes;  // of the input

  auto attributes() { return std::tie(dims, sizes); }

  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0] || !grads[0].defined()) return {Tensor()};
    // The kept dimensions are followed by the reduced ones, which are one dimension at first.
    std::vector<int64_t> order;
    std::vector<SymInt> kept;
    SymInt count = 1;
    for (int64_t i = 0; i < static_cast<int64_t>(sizes.size()); ++i) {
      if (contains(dims, i)) continue;
      order.push_back(i);
      kept.push_back(sizes[i]);
    }
    std::vector<SymInt> flat = kept, ordered = kept;
    for (int64_t dim : dims) {
      order.push_back(dim);
      ordered.push_back(sizes[dim]);
      count *= sizes[dim];
    }
    flat.push_back(count);
    kept.emplace_back(1);
    Tensor zeros = at::zeros_symint(flat, grads[0].options());
    Tensor dx = zeros.scatter(-1, saved[0].reshape_symint(kept), grads[0].reshape_symint(kept));
    return {dx.reshape_symint(ordered).permute(inverse(order))};
  }
};

IndexedArgs::Result with_indices_autograd(c10::DispatchKeySet keys, const IndexedArgs& a) {
  return run_with_gradient<IndexedGradient>(
      {a.input}, 1, [&] { return redispatch(keys, a); },
      [&](auto& node, const auto& results) {
        node.gradient = {check_dims(a.kName, a.input, a.dim), a.input.sym_sizes().vec()};
        save_input(node, results[1]);  // it has no history
      });
}

// PyTorch computes products in float32 under autocast, and on CUDA sums and norms too.
template <c10::DeviceType device>
Tensor forward_autocast(const ReduceArgs& a) {
  BelowAutocast guard(device);
  ReduceKind k = kind_of(a.kName, a.kind);
  bool product = k == ReduceKind::mul || k == ReduceKind::mul_no_zeros;
  bool sum = k == ReduceKind::add || k == ReduceKind::norm1 || k == ReduceKind::norm2;
  bool widens = product || (sum && device == at::kCUDA);
  Tensor x = widens ? at::autocast::cached_cast(at::kFloat, a.input, device) : a.input;
  return call_op(ReduceArgs{x, a.kind, a.dim, a.keepdim, a.policy});
}

}  // namespace

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<forward_autograd, with_indices_autograd>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  register_kernels<forward_autocast<at::kCPU>>(m);
}
TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCUDA, m) {
  register_kernels<forward_autocast<at::kCUDA>>(m);
}

}  // namespace torch_cudnn_ext::reduction
