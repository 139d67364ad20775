#include "core/errors.h"

#include <c10/util/Exception.h>

namespace torch_cudnn_ext {

namespace {

std::function<void(const std::string&)>& sink() {
  static auto* function = new std::function<void(const std::string&)>();
  return *function;
}

}  // namespace

void warn(const std::string& message) {
  if (sink()) {
    sink()(message);
  } else {
    TORCH_WARN(message);
  }
}

void set_warning_sink(std::function<void(const std::string&)> function) {
  sink() = std::move(function);
}

}  // namespace torch_cudnn_ext
