// Algorithms that the untuned order tries before those of the family's own order. Knows no library:
// whoever measured which algorithms lead registers the function that names them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/device.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

// Returns true, so that a constant at namespace scope registers it.
bool set_hints(std::function<std::vector<std::string>(const Problem&, const Device&)> hints);

std::vector<std::string> hints_for(const Problem& problem, const Device& device);

}  // namespace torch_cudnn_ext
