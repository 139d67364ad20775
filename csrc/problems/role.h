// The names of the tensors that a problem is computed from and gives. Knows nothing of their
// values.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>

#include "core/base/enum_text.h"

namespace torch_cudnn_ext {

// The role of a gradient is that of its tensor with a d before it. Convolution needs no such roles:
// its passes are made of the same three tensors.
enum class Role : uint8_t {
  x,
  w,
  y,
  bias,
  z,  // added to the result
  dx,
  dw,
  dy,
  dbias,
  dz,
  mean,
  invstd,
  running_mean,
  running_var,
  hx,
  cx,
  hy,
  cy,
  dhx,
  dcx,
  dhy,
  dcy,
  batch_sizes,  // int64 in host memory, one a time step, as in PyTorch's PackedSequence
  reserve,      // what a forward saves for its backward, in a format of its algorithm
  indices,
  grid,
  dgrid,
  targets,
  input_lengths,   // in host memory
  target_lengths,  // in host memory
  kCount
};

inline constexpr EnumName<Role> kRoles[] = {{Role::x, "x"},
                                            {Role::w, "w"},
                                            {Role::y, "y"},
                                            {Role::bias, "bias"},
                                            {Role::z, "z"},
                                            {Role::dx, "dx"},
                                            {Role::dw, "dw"},
                                            {Role::dy, "dy"},
                                            {Role::dbias, "dbias"},
                                            {Role::dz, "dz"},
                                            {Role::mean, "mean"},
                                            {Role::invstd, "invstd"},
                                            {Role::running_mean, "running_mean"},
                                            {Role::running_var, "running_var"},
                                            {Role::hx, "hx"},
                                            {Role::cx, "cx"},
                                            {Role::hy, "hy"},
                                            {Role::cy, "cy"},
                                            {Role::dhx, "dhx"},
                                            {Role::dcx, "dcx"},
                                            {Role::dhy, "dhy"},
                                            {Role::dcy, "dcy"},
                                            {Role::batch_sizes, "batch_sizes"},
                                            {Role::reserve, "reserve"},
                                            {Role::indices, "indices"},
                                            {Role::grid, "grid"},
                                            {Role::dgrid, "dgrid"},
                                            {Role::targets, "targets"},
                                            {Role::input_lengths, "input_lengths"},
                                            {Role::target_lengths, "target_lengths"}};
static_assert(std::size(kRoles) == static_cast<size_t>(Role::kCount));

inline const char* role_text(Role role) { return enum_text(kRoles, role); }
inline Role role_from_text(const std::string& text) {  // throws ValueError
  return enum_value(kRoles, "role", text);
}

}  // namespace torch_cudnn_ext
