// What the parts of pooling share: its operators' arguments, and the shapes of calls. Knows no
// algorithm.
#pragma once

#include <c10/core/MemoryFormat.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/DimVector.h>

#include <optional>
#include <tuple>

#include "ops/call.h"

namespace torch_cudnn_ext::pooling {

using SymInts = c10::SymDimVector;
using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;

inline SymInts copied(SymIntArrayRef list) { return {list.begin(), list.end()}; }

// Which windows there are, as arguments. The lists have one entry for each dimension of space; an
// empty stride is the kernel's size.
struct WindowArgs {
  SymIntArrayRef kernel_size, stride, padding, dilation;
  bool ceil, adaptive;
};

// A copy that outlives the call.
struct Windows {
  SymInts window, stride, padding, dilation;
  bool ceil = false, adaptive = false;

  Windows() = default;
  Windows(const WindowArgs& a)
      : window(copied(a.kernel_size)),
        stride(copied(a.stride.empty() ? a.kernel_size : a.stride)),
        padding(copied(a.padding)),
        dilation(copied(a.dilation)),
        ceil(a.ceil),
        adaptive(a.adaptive) {}

  WindowArgs args() const { return {window, stride, padding, dilation, ceil, adaptive}; }
  int64_t dims() const { return static_cast<int64_t>(window.size()); }

  auto attributes() { return std::tie(window, stride, padding, dilation, ceil, adaptive); }
};

// An average's windows have no gaps.
struct AverageArgs {
  SymIntArrayRef kernel_size, stride, padding;
  bool ceil, count_include_pad;
  std::optional<int64_t> divisor;
  bool adaptive;

  Windows windows() const {
    SymInts ones(kernel_size.size(), 1);
    return WindowArgs{kernel_size, stride, padding, ones, ceil, adaptive};
  }
};

struct MaxPoolArgs {
  static constexpr const char* kName = "max_pool";
  using Result = Tensor;
  const Tensor& input;
  WindowArgs w;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(input, w.kernel_size, w.stride, w.padding, w.dilation, w.ceil, w.adaptive,
                    policy);
  }
};

// The output, the reserve that the algorithm leaves for its backward, and the reserve's writer.
struct MaxPoolTrainArgs : MaxPoolArgs {
  static constexpr const char* kName = "_max_pool_train";
  using Result = Tensors3;
};

// channels_last is the layout that the forward ran in.
struct MaxPoolBackwardArgs {
  static constexpr const char* kName = "_max_pool_backward";
  using Result = Tensor;
  const Tensor &grad_output, &input, &output, &reserve;
  const OptionalTensor& writer;
  bool channels_last;
  WindowArgs w;
  OptionalPolicy policy;

  auto tied() const {
    return std::tie(grad_output, input, output, reserve, writer, channels_last, w.kernel_size,
                    w.stride, w.padding, w.dilation, w.ceil, w.adaptive, policy);
  }
};

struct AvgPoolArgs {
  static constexpr const char* kName = "avg_pool";
  using Result = Tensor;
  const Tensor& input;
  AverageArgs average;
  OptionalPolicy policy;

  auto tied() const {
    const AverageArgs& a = average;
    return std::tie(input, a.kernel_size, a.stride, a.padding, a.ceil, a.count_include_pad,
                    a.divisor, a.adaptive, policy);
  }
};

struct AvgPoolBackwardArgs {
  static constexpr const char* kName = "avg_pool_backward";
  using Result = Tensor;
  const Tensor& grad_output;
  SymIntArrayRef input_size;
  bool channels_last;
  AverageArgs average;
  OptionalPolicy policy;

  auto tied() const {
    const AverageArgs& a = average;
    return std::tie(grad_output, input_size, channels_last, a.kernel_size, a.stride, a.padding,
                    a.ceil, a.count_include_pad, a.divisor, a.adaptive, policy);
  }
};

// --- kernels

Tensor max_pool(const MaxPoolArgs& args);
Tensor max_pool_autograd(c10::DispatchKeySet keys, const MaxPoolArgs& args);
Tensor max_pool_backward(const MaxPoolBackwardArgs& args);
Tensor max_pool_backward_meta(const MaxPoolBackwardArgs& args);
Tensor avg_pool(const AvgPoolArgs& args);
Tensor avg_pool_autograd(c10::DispatchKeySet keys, const AvgPoolArgs& args);
Tensor avg_pool_backward(const AvgPoolBackwardArgs& args);
Tensor avg_pool_backward_meta(const AvgPoolBackwardArgs& args);

// --- what is known of a call without data. What is wrong with its arguments raises ValueError.

// The sizes of the result.
SymInts output_sizes(const char* op, SymIntArrayRef input, const Windows& w);
// Windows and divisor of an average.
Windows checked_windows(const Tensor& input, const AverageArgs& average);
int64_t divisor_of(const AverageArgs& average);
void check_max_backward(const MaxPoolBackwardArgs& args, const Windows& w);
void check_avg_backward(const AvgPoolBackwardArgs& args, const Windows& w);
// An empty tensor of the result's sizes and layout.
Tensor empty_output(const char* op, const Tensor& input, const Windows& w, bool is_max);

// The layout that a call runs in, that of its result, and that of `channels_last`.
at::MemoryFormat format_of(const Tensor& input, const Windows& w, bool is_max);
at::MemoryFormat format_of_result(const Tensor& input, const Windows& w, bool is_max);
at::MemoryFormat format_from(bool channels_last, const Windows& w);
// Whether one average is over all of space.
bool is_mean(const Windows& w);

// A tensor as batch, channels and two or three dimensions of space, and back to `rank` dimensions.
Tensor lift(const Tensor& t, const Windows& w);
Tensor lower(const Tensor& t, const Windows& w, int64_t rank);

}  // namespace torch_cudnn_ext::pooling
