// The problem of the CTC loss.
#pragma once

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

// full: all inputs have length T; padded: some are shorter. irregular: some target is empty, or
// does not fit into its input with a blank between any two labels.
enum class CtcLengths : uint8_t { full, padded, irregular };
inline constexpr EnumName<CtcLengths> kCtcLengths[] = {{CtcLengths::full, "full"},
                                                       {CtcLengths::padded, "padded"},
                                                       {CtcLengths::irregular, "irregular"}};
inline const auto& enum_names(CtcLengths) { return kCtcLengths; }

// The CTC loss of each sequence and, if requested, its gradient.
struct CtcProblem {
  static constexpr const char* kFamily = "ctc";

  ForwardPass pass = ForwardPass::fwd;
  TensorSpec log_probs;       // contiguous [T, N, classes]
  int64_t target_length = 1;  // of the longest target, at least 1
  int64_t blank = 0;
  CtcLengths lengths = CtcLengths::full;
  bool gradient = false;
  static constexpr int64_t alignment = 16;

  void canonicalise() { canonicalise_strides({&log_probs}); }
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("log_probs", p.log_probs);
    visit.required("target_length", p.target_length);
    visit.written("blank", p.blank, int64_t{0});
    visit.written("lengths", p.lengths, CtcLengths::full);
    visit.optional("gradient", p.gradient, false);
  }
};

}  // namespace torch_cudnn_ext
