#include "problems/checks.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

void CtcProblem::validate() const {
  check_sizes("ctc", "log_probs", log_probs, 3, 3);
  check_contiguous("ctc", "log_probs", log_probs);
  TORCH_CHECK_VALUE(log_probs.dtype == c10::kFloat || log_probs.dtype == c10::kDouble,
                    "ctc: log_probs is ", dtype_text(log_probs.dtype), ", wanted f32 or f64");
  TORCH_CHECK_VALUE(target_length >= 1, "ctc: target_length is ", target_length,
                    ", wanted at least 1");
  TORCH_CHECK_VALUE(blank >= 0 && blank < log_probs.sizes[2], "ctc: blank is ", blank,
                    ", wanted at least 0 and less than the number of classes ", log_probs.sizes[2]);
}

}  // namespace torch_cudnn_ext
