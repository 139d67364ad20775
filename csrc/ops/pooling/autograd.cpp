// Gradients of pooling, and its autocast.
#include "ops/autograd.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "ops/pooling/pooling.h"

namespace torch_cudnn_ext::pooling {
namespace {

bool runs_in_channels_last(const Tensor& input, const Windows& w, bool is_max) {
  return format_of(lift(input, w), w, is_max) != at::MemoryFormat::Contiguous;
}

// --- maximum

struct MaxPoolGradient {
  static constexpr const char* kName = "TorchCudnnExtMaxPoolBackward";
  static constexpr size_t kInputs = 1;
  Windows w;
  bool channels_last = false;  // the layout of the reserve
  std::optional<std::string> policy;

  auto attributes() { return std::tuple_cat(w.attributes(), std::tie(channels_last, policy)); }
  // Saved: input, output, the reserve and its writer.
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {call_kernel({&grads[0], &saved[0], &saved[1], &saved[2], &saved[3]}, max_pool_backward,
                        {grads[0], saved[0], saved[1], saved[2], optional_of(saved[3]),
                         channels_last, w.args(), policy})};
  }
  // The output, which PyTorch's own gradient does not read; by the algorithm that gave it.
  Tensor remade(TensorList before) const {
    Tensor input = before[0].detach();
    return std::get<0>(call_op(MaxPoolTrainArgs{{input, w.args(), policy}}));
  }
};

// Autograd knows this operator by itself too: in nested transforms max_pool calls it at the inner
// level, and the outer level sees nothing else.
Tensors3 max_pool_train_autograd(c10::DispatchKeySet keys, const MaxPoolTrainArgs& args) {
  return run_with_gradient<MaxPoolGradient>(
      {args.input}, 1, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto& results) {
        auto& g = node.gradient;
        g.w = args.w;
        g.channels_last = runs_in_channels_last(args.input, g.w, true);
        save_input(node, args.input);
        save_result(node, results[0]);
        save_input(node, results[1]);
        save_writer(node, "_max_pool_train", PoolingProblem::kFamily, args.policy, results[2]);
      });
}

// Linear in grad_output: every element of the result comes from the place of its maximum, so the
// gradient is gathered from there. Only its algorithm can read the reserve, so PyTorch finds the
// places again.
struct MaxPoolBackwardGradient {
  static constexpr const char* kName = "TorchCudnnExtMaxPoolBackwardBackward";
  static constexpr size_t kInputs = 2;  // grad_output, input: its gradient is zero
  Windows w;

  auto attributes() { return w.attributes(); }
  variable_list apply(const variable_list& grads, TensorList saved, const Needed& needed) {
    variable_list result(kInputs);
    if (needed[0]) {
      // In one dimension of space, by an operator that takes batches of gradients.
      auto flat = [space = w.window.size()](const Tensor& t) {
        auto sizes = t.sym_sizes();
        SymInts kept = copied(sizes.slice(0, sizes.size() - space));
        kept.push_back(c10::multiply_integers(sizes.slice(sizes.size() - space)));
        return t.reshape_symint(kept);
      };
      Tensor indices = indices_in(saved[0]);
      Tensor gathered = flat(grads[0]).gather(-1, flat(indices));
      result[0] = gathered.reshape_symint(indices.sym_sizes());
    }
    if (needed[1]) result[1] = at::zeros_like(saved[0]);
    return result;
  }

 private:
  // The place of each maximum in its flattened plane or volume.
  Tensor indices_in(const Tensor& input) const {
    at::NoGradGuard no_grad;
    auto ints = [](const SymInts& list) { return C10_AS_INTARRAYREF_SLOW(SymIntArrayRef(list)); };
    Tensor x = input.detach();
    if (w.adaptive) {
      auto find = w.dims() == 1   ? at::adaptive_max_pool1d
                  : w.dims() == 2 ? at::adaptive_max_pool2d
                                  : at::adaptive_max_pool3d;
      return std::get<1>(find(x, ints(w.window)));
    }
    auto find = w.dims() == 1   ? at::max_pool1d_with_indices
                : w.dims() == 2 ? at::max_pool2d_with_indices
                                : at::max_pool3d_with_indices;
    return std::get<1>(
        find(x, ints(w.window), ints(w.stride), ints(w.padding), ints(w.dilation), w.ceil));
  }
};

Tensor max_pool_backward_autograd(c10::DispatchKeySet keys, const MaxPoolBackwardArgs& args) {
  return run_with_gradient<MaxPoolBackwardGradient>(
      {args.grad_output, args.input}, 1, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto&) {
        node.gradient.w = args.w;
        save_input(node, args.input);
      });
}

// --- average

// Forward and backward of an average are linear, and each is the gradient of the other.
struct AvgPoolGradient {
  Windows w;
  bool count_include_pad = true;
  std::optional<int64_t> divisor;
  std::optional<std::string> policy;

  void set(const AverageArgs& average, OptionalPolicy given) {
    w = average.windows();
    count_include_pad = average.count_include_pad;
    divisor = average.divisor;
    policy = policy_to_save(PoolingProblem::kFamily, given);
  }
  AverageArgs average() const {
    return {w.window, w.stride, w.padding, w.ceil, count_include_pad, divisor, w.adaptive};
  }

  auto attributes() {
    return std::tuple_cat(w.attributes(), std::tie(count_include_pad, divisor, policy));
  }
};

struct AvgPoolForwardGradient : AvgPoolGradient {
  static constexpr const char* kName = "TorchCudnnExtAvgPoolBackward";
  static constexpr size_t kInputs = 1;
  SymInts input_size;
  bool channels_last = false;

  auto attributes() {
    return std::tuple_cat(AvgPoolGradient::attributes(), std::tie(input_size, channels_last));
  }
  variable_list apply(const variable_list& grads, TensorList, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {call_kernel({&grads[0]}, avg_pool_backward,
                        {grads[0], input_size, channels_last, average(), policy})};
  }
};

struct AvgPoolBackwardGradient : AvgPoolGradient {
  static constexpr const char* kName = "TorchCudnnExtAvgPoolBackwardBackward";
  static constexpr size_t kInputs = 1;

  variable_list apply(const variable_list& grads, TensorList, const Needed& needed) {
    if (!needed[0]) return {Tensor()};
    return {call_op(AvgPoolArgs{grads[0], average(), policy})};
  }
};

Tensor avg_pool_backward_autograd(c10::DispatchKeySet keys, const AvgPoolBackwardArgs& args) {
  return run_with_gradient<AvgPoolBackwardGradient>(
      {args.grad_output}, 1, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto&) { node.gradient.set(args.average, args.policy); });
}

// --- autocast: as PyTorch does, over volumes on the CPU alone, in float32

Tensor cast(const Tensor& input, SymIntArrayRef kernel_size) {
  return kernel_size.size() == 3 ? at::autocast::cached_cast(at::kFloat, input, at::kCPU) : input;
}

Tensor max_pool_autocast(const MaxPoolArgs& args) {
  BelowAutocast below(c10::kCPU);
  return call_op(MaxPoolArgs{cast(args.input, args.w.kernel_size), args.w, args.policy});
}

Tensor avg_pool_autocast(const AvgPoolArgs& args) {
  BelowAutocast below(c10::kCPU);
  return call_op(
      AvgPoolArgs{cast(args.input, args.average.kernel_size), args.average, args.policy});
}

}  // namespace

Tensor max_pool_autograd(c10::DispatchKeySet keys, const MaxPoolArgs& args) {
  if (args.input.requires_grad() && at::GradMode::is_enabled()) {
    return std::get<0>(max_pool_train_autograd(keys, {args}));
  }
  return run_with_gradient<MaxPoolGradient>(
      {args.input}, 1, [&] { return redispatch(keys, args); }, [](auto&, const auto&) {});
}

Tensor avg_pool_autograd(c10::DispatchKeySet keys, const AvgPoolArgs& args) {
  return run_with_gradient<AvgPoolForwardGradient>(
      {args.input}, 1, [&] { return redispatch(keys, args); },
      [&](auto& node, const auto&) {
        auto& g = node.gradient;
        g.set(args.average, args.policy);
        g.input_size = copied(args.input.sym_sizes());
        at::NoGradGuard no_grad;
        // The gradient of a mean is contiguous.
        g.channels_last = !is_mean(g.w) && runs_in_channels_last(args.input, g.w, false);
      });
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, Autograd, m) {
  register_kernels<max_pool_autograd, avg_pool_autograd, avg_pool_backward_autograd,
                   max_pool_train_autograd, max_pool_backward_autograd>(m);
}

TORCH_LIBRARY_IMPL(torch_cudnn_ext, AutocastCPU, m) {
  register_kernels<max_pool_autocast, avg_pool_autocast>(m);
}

}  // namespace torch_cudnn_ext::pooling
