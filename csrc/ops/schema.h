// What the definitions of schemas share; each family defines its own next to its code. PyTorch's
// own positional arguments come first in a schema, then this package's by keyword. Knows no
// operator.
#pragma once

#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <string>
#include <vector>

namespace torch_cudnn_ext {

inline std::vector<at::Tag> tags() { return {at::Tag::pt2_compliant_tag}; }

// The tags of operators that draw their results from a random generator.
inline std::vector<at::Tag> random_tags() {
  return {at::Tag::pt2_compliant_tag, at::Tag::nondeterministic_seeded};
}

inline void define(torch::Library& m, const std::vector<std::string>& schemas,
                   const std::vector<at::Tag>& tags = torch_cudnn_ext::tags()) {
  for (const std::string& schema : schemas) m.def(schema.c_str(), tags);
}

}  // namespace torch_cudnn_ext
