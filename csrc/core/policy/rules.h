// Rules by problem: `when("conv_fwd w=*[64,64,3,3]* pad=1", use="winograd")`. A rule is weaker than
// what the call or its module asks for and stronger than all else. Rules are read when a problem is
// decided, so that calls that were seen before do not pay for them; dropout reads them each time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/policy/resolve.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

// Adds a rule, which is stronger than those before it, and gives its id. A matcher is an operator
// and pass, then fields of the problem line as key=glob, in any order; `*` stands for any text, `?`
// for any character. A word in `use` is for that pass alone. Throws ValueError.
int64_t add_rule(std::string_view matcher, std::string_view use);
// Adds nothing and gives the policy, with the names of operators. Throws ValueError.
std::string check_rule(std::string_view matcher, std::string_view use);
// How many problems a rule matched so far, among those that were decided.
int64_t problems_of_rule(int64_t id);
void remove_rule(int64_t id);

// What rules say of a problem and of the problems that share its algorithm.
struct RuledPolicy {
  bool any = false;  // whether a rule matches
  Policy policy;
  std::string source;  // the rule that selects the algorithm; may be empty
};
RuledPolicy rules_for(const Problem& problem);
// The policy with what rules say.
const ResolvedPolicy& with_rules(const Problem& problem, const ResolvedPolicy& policy);

// What torch.backends.cudnn.conv_fwd_algo and its like say: the weakest level, on GPUs only.
void set_cudnn_pins(Policy pins);
Policy cudnn_pins();

}  // namespace torch_cudnn_ext
