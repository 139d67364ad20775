// How many windows fit into one dimension: of numbers, and of symbols while a graph is traced.
#pragma once

namespace torch_cudnn_ext {

// As PyTorch counts: with `ceil`, a last window that starts within the input or the padding before
// it may reach beyond the padding. 0 or less if no window fits.
template <class Int>
Int pooled_size(const Int& in, const Int& window, const Int& padding, const Int& stride,
                const Int& dilation, bool ceil) {
  Int room = in + padding * 2 - dilation * (window - 1) - 1;
  if (ceil) room = room + stride - 1;
  if (room < 0) return 0;
  Int out = room / stride + 1;
  if (ceil && (out - 1) * stride >= in + padding) out = out - 1;
  return out;
}

}  // namespace torch_cudnn_ext
