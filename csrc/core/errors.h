// Warnings to the user. The core knows no Python: whoever embeds it says where they go.
#pragma once

#include <functional>
#include <string>

namespace torch_cudnn_ext {

void warn(const std::string& message);
void set_warning_sink(std::function<void(const std::string&)> sink);

}  // namespace torch_cudnn_ext
