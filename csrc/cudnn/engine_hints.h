// Engines that were measured to lead the untuned order. Their numbers mean the same engine only in
// the versions of cuDNN that they were measured with, and speeds differ between GPUs. Elsewhere the
// family's order names none: it takes PyTorch's kernel, the classic API's algorithm or the first of
// cuDNN's own heuristic.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cudnn/verified.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

struct EngineHint {
  std::string id, family;
  std::vector<std::string> algorithms;            // in the order in which they are tried
  std::function<bool(const Problem&)> condition;  // the first row of the family that holds counts
  std::vector<Platform> measured;
  std::string text;  // for which problems, and what was measured
};

const std::vector<EngineHint>& engine_hints();
bool is_on(const EngineHint& hint, int64_t cudnn, int capability);

}  // namespace torch_cudnn_ext
