// The texts of policies: reading, writing, and what to suggest for a word that is none.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/policy/policy.h"

namespace torch_cudnn_ext {

// A policy that says `fastest` ignores its own cap, and sets benchmark and prefer=time if they are
// open. Throws ValueError.
Policy parse_policy(std::string_view text, const std::string& family);
// The same for one operator and pass: a word is for this pass alone.
Policy parse_policy_of(const std::string& op, std::string_view text);

// A policy as autograd nodes and writers keep it, for operators that run later on any thread.
struct SavedPolicy {
  Policy call;                                    // what the call asked for
  Policy all;                                     // all levels of that time in one
  bool baseline_may_be_nondeterministic = false;  // see ResolvedPolicy

  // Both policies in braces, which no policy text contains, and the flag if it is set:
  //   call{fwd=cpu:fft} all{fwd=cpu:fft;deterministic} baseline_may_be_nondeterministic
  std::string text(const std::string& family) const;
};
// nullopt if the text is a user's. Throws ValueError.
std::optional<SavedPolicy> parse_saved_policy(std::string_view text, const std::string& family);

}  // namespace torch_cudnn_ext
