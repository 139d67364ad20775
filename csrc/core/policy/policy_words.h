// The words that a policy's text may hold, and what to suggest for a text that is none of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_text.h"
#include "core/operator.h"
#include "core/policy/policy.h"

namespace torch_cudnn_ext {

// Keys that need a value.
inline constexpr const char* kValueKeys[] = {"max_workspace",  "prefer",  "replay", "backends",
                                             "on_unsupported", "on_miss", "compute"};
inline constexpr EnumName<Selection::Kind> kSelections[] = {
    {Selection::Kind::heuristic, "heuristic"},
    {Selection::Kind::autotune, "autotune"},
    {Selection::Kind::tuned, "tuned"},
    {Selection::Kind::guess_once, "guess_once"},
    {Selection::Kind::time_once, "time_once"},
    // A decision is always made for one shape, so these say no more than the first two.
    {Selection::Kind::heuristic, "guess_on_shape_change"},
    {Selection::Kind::autotune, "time_on_shape_change"}};

// One pass of one operator, whose name is "conv_fwd".
struct NamedPass {
  const Operator* op;
  std::string pass, name;
};
std::vector<NamedPass> all_passes();

// All words that select for a pass, spelled as `text`: with a backend or without.
std::vector<std::string> selections_of(std::string_view text, const Operator& op,
                                       const std::string& pass);
// For an algorithm that an operator does not have: the operators that do, as the end of an error.
std::string other_families_with(const Algorithm& algorithm, const Operator& op);
// All that a policy's text may say before a `=`.
std::vector<std::string> known_keys(const std::string& family);
// What an error about a text adds. If the text names an algorithm of the classic API, these are the
// passes that have it. Otherwise these are the nearest of the known words, if there are any.
std::string suggestion(std::string_view text, const std::vector<std::string>& known);

}  // namespace torch_cudnn_ext
