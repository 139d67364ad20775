// Choices by problem: `when("conv_fwd w=*[64,64,3,3]* pad=1", use="winograd")`. They are weaker
// than what a call or a module asks for and stronger than all else, and read when a problem is
// decided, so that they cost nothing on calls that were seen before; dropout's read them each time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/policy/policy.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

// A matcher is an operator and pass, then fields of the problem line as key=glob, in any order; `*`
// stands for any text, `?` for any character. A word in `use` is for that pass alone. Of two rules
// that match, the newer is the stronger. All throw ValueError.
int64_t add_rule(std::string_view matcher, std::string_view use);
// Adds nothing; gives the policy, with names of operators.
std::string check_rule(std::string_view matcher, std::string_view use);
void remove_rule(int64_t id);

bool has_rules();
struct RuledPolicy {
  bool any = false;  // whether a rule matches
  Policy policy;
  std::string source;  // the rule that chooses the algorithm; may be empty
};
RuledPolicy rules_for(const Problem& problem);

// What torch.backends.cudnn.conv_fwd_algo and its like say: the weakest level, on GPUs alone.
void set_cudnn_pins(Policy pins);
Policy cudnn_pins();

}  // namespace torch_cudnn_ext
