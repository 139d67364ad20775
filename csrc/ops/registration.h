// Registers an operator: its schema and its kernels below autograd. Knows no family.
#pragma once

#include <torch/library.h>

#include <string>

#include "ops/schema.h"

namespace torch_cudnn_ext {

// Defines an operator. `run` computes it on the CPU and on CUDA; `meta` checks the arguments and
// makes results that have no values.
template <auto run, auto meta>
void define_operator(torch::Library& m, const std::string& schema,
                     const std::vector<at::Tag>& tags) {
  m.def(schema.c_str(), tags);
  std::string name = schema.substr(0, schema.find('('));
  m.impl(name.c_str(), c10::DispatchKey::CPU, TORCH_FN(run));
  m.impl(name.c_str(), c10::DispatchKey::CUDA, TORCH_FN(run));
  m.impl(name.c_str(), c10::DispatchKey::Meta, TORCH_FN(meta));
}

}  // namespace torch_cudnn_ext
