// What the user is told once before a GPU is first used. Knows no library: whoever knows what was
// verified registers the function that says so.
#pragma once

#include <functional>
#include <string>

#include "core/device.h"

namespace torch_cudnn_ext {

// Gives the text for a CUDA device; empty if there is nothing to say. Returns true, so that a
// constant at namespace scope registers it.
bool set_caution(std::function<std::string(const Device&)> caution);

// That text; empty for what is no CUDA device.
std::string caution_for(const Device& device);

// Who warns of the text.
void set_caution_sink(std::function<void(const std::string&)> sink);

// Warns at the first call of the process whose device has something to say. May need Python's lock.
void give_caution_once(const Device& device);

}  // namespace torch_cudnn_ext
