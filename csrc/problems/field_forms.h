// The forms of the values that the fields of problem texts may have. A rule that matches none of
// them raises when it is made.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_cudnn_ext {

// The fields of an operator and pass ("conv_fwd") in the order of the text, each with its forms for
// glob_can_match().
std::vector<std::pair<std::string, std::vector<std::string>>> field_forms(std::string_view op);

}  // namespace torch_cudnn_ext
