// Small steps that kernels and plans take several times a call. They spare the dispatcher, which
// takes as long as the steps themselves; so they are for code below autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided_native.h>

#include <optional>

#include "core/algorithm.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

// The same memory in other sizes and strides, of which nothing is worked out anew.
inline at::Tensor strided_view(const at::Tensor& t, c10::IntArrayRef sizes,
                               c10::IntArrayRef strides) {
  return at::native::as_strided_tensorimpl(t, sizes, strides, t.storage_offset());
}

// Whether the address is a multiple of 16 bytes, which every kernel takes.
inline bool is_aligned(const at::Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}
// A copy at an address that is, with the same strides, whatever these are.
at::Tensor copy_in_layout(const at::Tensor& t);

// Raises ValueError unless the reserve that a backward got has as many bytes as the algorithm
// leaves.
void check_reserve(const char* family, const Algorithm& algorithm, const at::Tensor& reserve,
                   int64_t bytes);

// A dimension of size 1 at `dim`, put in or taken out.
at::Tensor with_unit_dim(const at::Tensor& t, int dim);
at::Tensor without_unit_dim(const at::Tensor& t, int dim);

// --- also above autograd

// What a reduction reads, as [kept, reduced].
inline at::Tensor reduced_rows(const ReduceProblem& p, const at::Tensor& x) {
  return x.permute(p.rows_order()).reshape({-1, p.reduced_count()});
}

// The weight that cross-correlates as `w` does in the problem's mode, and the other way round.
at::Tensor flip_for_mode(const ConvolutionProblem& p, const at::Tensor& w);

// Of each channel of [N, C, S].
inline at::Tensor sum_of_channels(const at::Tensor& t) { return t.sum(at::IntArrayRef{0, 2}); }
inline at::Tensor mean_of_channels(const at::Tensor& t) { return t.mean(at::IntArrayRef{0, 2}); }

// Of a dense tensor, whatever the stride of a lone image is, by which PyTorch's suggestion goes.
inline at::MemoryFormat format_of(const at::Tensor& t) {
  auto is = [&](at::MemoryFormat format) { return t.is_contiguous(format); };
  if (t.dim() == 4 && !t.is_contiguous() && is(at::MemoryFormat::ChannelsLast)) {
    return at::MemoryFormat::ChannelsLast;
  }
  if (t.dim() == 5 && !t.is_contiguous() && is(at::MemoryFormat::ChannelsLast3d)) {
    return at::MemoryFormat::ChannelsLast3d;
  }
  return t.suggest_memory_format();
}

// nullopt for an undefined tensor: PyTorch tells that from one that is not given.
inline std::optional<at::Tensor> optional_of(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

inline at::Tensor in_dtype(const at::Tensor& t, c10::ScalarType dtype) {
  return t.scalar_type() == dtype ? t : t.to(dtype);
}

}  // namespace torch_cudnn_ext
