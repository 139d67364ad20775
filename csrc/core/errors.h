// Warnings to the user, and the user's wish to stop. The core knows no Python: whoever embeds it
// says where warnings go and what asks for an end.
#pragma once

#include <functional>
#include <string>

namespace torch_cudnn_ext {

void warn(const std::string& message);
void set_warning_sink(std::function<void(const std::string&)> sink);

// Throws when the user asked to stop (Ctrl-C). Called between the steps of long work.
void check_interrupt();
void set_interrupt_check(std::function<void()> check);

}  // namespace torch_cudnn_ext
