// Known defects of cuDNN's versions that concern more than one backend.
#pragma once

#include <cudnn.h>

#include "core/plan.h"

namespace torch_cudnn_ext {

// Whether this is the version whose engines were all run in search of defects.
inline bool is_cudnn_9_19() { return cudnnGetVersion() / 100 == 919; }

// Whether the maximum of a window that holds only -inf is the lowest finite number. It is in 9.19;
// 9.28 gives -inf.
inline bool pools_to_lowest() { return cudnnGetVersion() < 92800; }

// Marks a Winograd algorithm. For 5x5 kernels cuDNN 9 takes tiles of 13x13, whose transforms cost
// some 13 bits: relative errors are 2e-4 to 4e-3 on float32 data (measured on an H200 with 9.19).
// Images are clamped to the finite numbers of float32, and NaN becomes the lowest one (seen on an
// H100 with 9.19).
inline void add_winograd_notes(Notes& notes, const ConvolutionProblem& problem) {
  notes.add(Note::winograd);
  for (int i = 2; i < problem.w.sizes.size(); ++i) {
    if (problem.w.sizes[i] >= 5) notes.add(Note::low_accuracy);
  }
  if (problem.pass != ConvolutionPass::bwd_filter) notes.add(Note::reduced_range);
}

}  // namespace torch_cudnn_ext
