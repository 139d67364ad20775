// Small steps that kernels and plans take several times a call. They avoid the dispatcher, which
// takes as long as the steps themselves, so they are for code below autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/algorithm.h"
#include "torch/internals.h"

namespace torch_cudnn_ext {

// The same memory in other sizes and strides, which are taken as they are.
inline at::Tensor strided_view(const at::Tensor& t, c10::IntArrayRef sizes,
                               c10::IntArrayRef strides) {
  return pytorch_kernels::as_strided_tensorimpl(t, sizes, strides, t.storage_offset());
}

// Whether the address is a multiple of 16 bytes, which is enough for every kernel.
inline bool is_aligned(const at::Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}
// An aligned copy with the same strides, whatever they are.
at::Tensor copy_in_layout(const at::Tensor& t);

// Throws ValueError unless the reserve that a backward got has the `bytes` that the algorithm
// saves.
void check_reserve(const char* family, const Algorithm& algorithm, const at::Tensor& reserve,
                   int64_t bytes);

// Inserts or removes a dimension of size 1 at `dim`.
at::Tensor with_unit_dim(const at::Tensor& t, int dim);
at::Tensor without_unit_dim(const at::Tensor& t, int dim);

// --- The steps from here on work above autograd too.

// For each channel of [N, C, S].
inline at::Tensor sum_of_channels(const at::Tensor& t) { return t.sum(at::IntArrayRef{0, 2}); }
inline at::Tensor mean_of_channels(const at::Tensor& t) { return t.mean(at::IntArrayRef{0, 2}); }

// The memory format of a dense tensor. PyTorch's suggestion depends on the stride of the batch even
// if there is one image only; this does not.
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

// nullopt for an undefined tensor, since PyTorch's operators distinguish the two.
inline std::optional<at::Tensor> optional_of(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

inline at::Tensor in_dtype(const at::Tensor& t, c10::ScalarType dtype) {
  return t.scalar_type() == dtype ? t : t.to(dtype);
}

}  // namespace torch_cudnn_ext
