// What all readers of texts share: the length limit, globs, and the known words nearest to a word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace torch_cudnn_ext {

// Most bytes of a text. The limit for an algorithm is lower, so that a policy can name one for
// every pass of every family.
inline constexpr size_t kMaxText = 65536;
inline constexpr size_t kMaxAlgorithm = 1024;

std::string in_lower_case(std::string_view text);

// Throws ValueError for a text that is too long; `what` says what is being read: "policy text".
void check_length(std::string_view what, std::string_view text, size_t most = kMaxText);

// `*` stands for any text and `?` for any character. The time is proportional to the product of
// both lengths.
bool glob_matches(std::string_view glob, std::string_view text);

// Whether a glob matches any text of a form. `kNumbers` in a form stands for one or more characters
// of a list of numbers.
inline constexpr char kNumbers = '#';
bool glob_can_match(std::string_view glob, std::string_view form);

// Where users find the full lists of words.
inline constexpr const char* kInPolicies = "docs/reference/policy.md";
inline constexpr const char* kInTexts = "docs/reference/problem-lines.md";
inline constexpr const char* kInOperators = "info --operators";

// At most five known words that differ from `word` in few letters, the nearest first. Case does not
// count. A `*` in the word stands for any text.
std::vector<std::string> nearest_words(std::string_view word,
                                       const std::vector<std::string>& known);

// "wanted one of a, b, c". If many words are known: the nearest of them, and `all`, the place of
// the full list.
std::string wanted_words(std::string_view word, const std::vector<std::string>& known,
                         std::string_view all);

}  // namespace torch_cudnn_ext
