// The forms of the values that fields of problem lines have, by which a rule that can match none is
// found when it is made.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_cudnn_ext {

// By field of an operator and pass ("conv_fwd"), in the order of the line: its forms as
// glob_can_match() reads them.
std::vector<std::pair<std::string, std::vector<std::string>>> field_forms(std::string_view op);

}  // namespace torch_cudnn_ext
