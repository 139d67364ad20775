// Convolutions rewritten as others, or as matrix products, which PyTorch runs faster.
#pragma once

#include <vector>

#include "backends/aten/plan.h"
#include "problems/problem.h"

namespace torch_cudnn_ext::aten {

// A forward over few channels, such as an image's, or its filter gradient. Few channels leave most
// of a tensor core idle. Folded, all that a window sees of a row is one pixel: windows of 7x7 over
// 3 channels become windows of 7x1 over 8 columns of 4 channels.
class FoldedChannels {
 public:
  static bool takes(const ConvolutionProblem& p);

  explicit FoldedChannels(const ConvolutionProblem& p);
  Tensor operator()(const Bindings& b) const;

 private:
  static constexpr int64_t kChannels = 4;  // of a column

  // [batch, rows, places of windows, columns * channels]
  Tensor input(const Tensor& x) const;
  // [filters, rows, 1, columns * channels]
  Tensor weight(const Tensor& w, const Tensor& bias) const;
  bool can_add_bias() const;

  const ConvolutionProblem p_;
  const int64_t columns_;
  const bool adds_bias_;  // by a channel of ones in addition to those of x
};

// A data gradient as the forward over y's gradient with the weight turned around. Few channels of
// x, which are the forward's results, become more: those of a block of pixels each.
class TransposedAsForward {
 public:
  // Sides of the blocks that pay, in pixels; none if the problem cannot be rewritten.
  static std::vector<int64_t> blocks(const ConvolutionProblem& p);

  TransposedAsForward(const ConvolutionProblem& p, int64_t block);
  Tensor operator()(const Bindings& b) const;

 private:
  // Pixel block * i + t of x is in the window of place o if tap block * i + t + padding - stride *
  // o is one of the weight's. For block i these are the places step * i + m, with m from `first`
  // on.
  struct Dimension {
    int64_t first, taps;
    int64_t blocks, skipped;  // results of the forward: wanted, and before those
  };

  Dimension dimension(int i) const;
  Tensor weight(const Bindings& b) const;
  Tensor pixels(const Tensor& blocks) const;

  const ConvolutionProblem p_;
  const int64_t block_;
  const bool x_is_channels_last_, y_is_channels_last_;
  std::vector<Dimension> dimensions_;
  Dims step_, padding_;  // of the forward
};

// A forward or a filter gradient as one matrix product: what is under a window is copied to a row
// of the first. It pays in types for which convolutions have no tensor cores.
class Im2col {
 public:
  static bool takes(const ConvolutionProblem& p);

  explicit Im2col(const ConvolutionProblem& p);
  Tensor operator()(const Bindings& b) const;

 private:
  Tensor rows(const Tensor& x) const;  // [windows, columns]

  const ConvolutionProblem p_;
  const int64_t windows_, columns_;
  const bool x_is_channels_last_;  // then channels come last in a row, too
};

}  // namespace torch_cudnn_ext::aten
