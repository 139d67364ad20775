#include "core/select/hints.h"

#include <utility>

namespace torch_cudnn_ext {

namespace {

std::function<std::vector<std::string>(const Problem&, const Device&)>& hints_function() {
  static auto* function =
      new std::function<std::vector<std::string>(const Problem&, const Device&)>();
  return *function;
}

}  // namespace

bool set_hints(std::function<std::vector<std::string>(const Problem&, const Device&)> hints) {
  hints_function() = std::move(hints);
  return true;
}

std::vector<std::string> hints_for(const Problem& problem, const Device& device) {
  return hints_function() ? hints_function()(problem, device) : std::vector<std::string>();
}

}  // namespace torch_cudnn_ext
