// Tags of the operators' schemas.
#pragma once
#include <ATen/core/enum_tag.h>

#include <vector>
namespace torch_cudnn_ext {
inline std::vector<at::Tag> tags() { return {at::Tag::pt2_compliant_tag}; }
// Of operators that draw from PyTorch's generator.
inline std::vector<at::Tag> random_tags() {
  return {at::Tag::pt2_compliant_tag, at::Tag::nondeterministic_seeded};
}
}  // namespace torch_cudnn_ext
