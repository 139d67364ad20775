#include "problems/checks.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

void MatmulProblem::canonicalise() {
  canonicalise_strides({&x, &w});
  // One row whose elements lie apart is a matrix in columns.
  for (TensorSpec* t : {&x, &w}) {
    if (t->sizes[1] == 1 && t->strides[2] != 1) t->strides[1] = 1;
  }
}

void MatmulProblem::validate() const {
  check_sizes("matmul", "x", x, 3, 3);
  check_sizes("matmul", "w", w, 3, 3);
  check_same_dtype("matmul", "w", w, "x", x);
  TORCH_CHECK_VALUE(x.sizes[2] == w.sizes[1], "matmul: w has ", w.sizes[1], " rows, wanted x's ",
                    x.sizes[2], " columns");
  int64_t a = x.sizes[0], b = w.sizes[0];
  TORCH_CHECK_VALUE(a == b || a == 1 || b == 1, "matmul: w has a batch of ", b,
                    ", wanted 1 or x's ", a);
  check_sizes("matmul", "the product", output(), 3, 3);
  TORCH_CHECK_VALUE(compute == default_compute(), "matmul: compute is ", dtype_text(compute),
                    " for ", dtype_text(x.dtype), " data, wanted ", dtype_text(default_compute()));
  for (const TensorSpec* t : {&x, &w}) {
    bool rows = t->strides[2] == 1 && t->strides[1] >= t->sizes[2];
    bool columns = t->strides[1] == 1 && t->strides[2] >= t->sizes[1];
    TORCH_CHECK_VALUE(rows || columns, "matmul: ", t == &x ? "x" : "w", " has strides ",
                      c10::IntArrayRef(t->strides),
                      ", wanted a matrix in rows or columns without overlap");
  }
  bool z_is_valid = accumulate == Accumulate::general || z == (accumulate == Accumulate::add);
  TORCH_CHECK_VALUE(z_is_valid, "matmul: z is ", z, ", wanted ", !z, " with this accumulate");
  check_alignment("matmul", alignment, x.dtype);
}

}  // namespace torch_cudnn_ext
