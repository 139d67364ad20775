// The problem of local response normalisation.
#pragma once

#include <string_view>

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

enum class LrnKind : uint8_t { cross_channel, divisive };
inline constexpr EnumName<LrnKind> kLrnKinds[] = {{LrnKind::cross_channel, "cross_channel"},
                                                  {LrnKind::divisive, "divisive"}};
inline const auto& enum_names(LrnKind) { return kLrnKinds; }
inline LrnKind lrn_kind_from_text(std::string_view what, std::string_view text) {
  return enum_value(kLrnKinds, what, text);
}

// The library whose rule sets the middle of a window of even size.
enum class LrnWindow : uint8_t { torch, cudnn };
inline constexpr EnumName<LrnWindow> kLrnWindows[] = {{LrnWindow::torch, "torch"},
                                                      {LrnWindow::cudnn, "cudnn"}};
inline const auto& enum_names(LrnWindow) { return kLrnWindows; }
inline LrnWindow lrn_window_from_text(std::string_view what, std::string_view text) {
  return enum_value(kLrnWindows, what, text);
}

// x divided by (k + alpha * mean of squares in a window)^beta; elements outside of x count as zero.
// cross_channel: x is [batch, channels, space], and the window runs over channels.
// divisive: x is [batch, channels, space...], the window runs over each spatial dimension, and the
// squares are those of x - means. Tensors are contiguous.
struct LrnProblem {
  static constexpr const char* kFamily = "lrn";

  Pass pass = Pass::fwd;
  TensorSpec x;  // and all other tensors
  LrnKind kind = LrnKind::cross_channel;
  int64_t size = 5;  // of the window
  double alpha = 1e-4, beta = 0.75, k = 1;
  LrnWindow window = LrnWindow::torch;
  bool means = false;  // whether the problem has means
  int64_t alignment = 16;

  // Elements of the window before and after its middle.
  int64_t before() const { return window == LrnWindow::torch ? size / 2 : (size - 1) / 2; }
  int64_t after() const { return size - 1 - before(); }
  // The dimensions that the window runs over.
  int first_dim() const { return kind == LrnKind::divisive ? 2 : 1; }
  int end_dim() const { return kind == LrnKind::divisive ? x.sizes.size() : 2; }
  double elements() const;  // of the window

  // Both rules agree on windows of odd size. Divisive norms always have cuDNN's.
  void canonicalise() {
    canonicalise_strides({&x});
    window =
        size % 2 == 1 ? LrnWindow::torch : (kind == LrnKind::divisive ? LrnWindow::cudnn : window);
  }
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.required("kind", p.kind);
    visit.required("size", p.size);
    visit.written("alpha", p.alpha, 1e-4);
    visit.written("beta", p.beta, 0.75);
    visit.written("k", p.k, 1.0);
    visit.optional("window", p.window, LrnWindow::torch);
    visit.optional("means", p.means, false);
    visit.optional("align", p.alignment, int64_t{16});
  }
};

}  // namespace torch_cudnn_ext
