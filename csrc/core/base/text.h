// What all readers of texts share: how long a text may be, globs, and the nearest of known words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace torch_cudnn_ext {

// In bytes, of each text that is parsed. An algorithm is shorter, so that a policy that names one
// for every pass of every family is still a text.
inline constexpr size_t kMaxText = 65536;
inline constexpr size_t kMaxAlgorithm = 1024;

std::string in_lower_case(std::string_view text);

// Throws ValueError; `what` says what is being read: "policy text".
void check_length(std::string_view what, std::string_view text, size_t most = kMaxText);

// `*` stands for any text and `?` for any character. Takes time in proportion to both lengths.
bool glob_matches(std::string_view glob, std::string_view text);

// Whether a glob matches any text of a form, in which `kNumbers` stands for one or more characters
// of numbers in a list.
inline constexpr char kNumbers = '#';
bool glob_can_match(std::string_view glob, std::string_view form);

// Where the full lists of words are.
inline constexpr const char* kInPolicies = "README.md, \"Autotuning and constraints\"";
inline constexpr const char* kInTexts = "README.md, \"Texts\"";
inline constexpr const char* kInOperators = "info --operators";

// The known words that are nearest by the number of letters to change, at most five, the nearest
// first; none that is far off. Case does not count. A `*` in the word stands for any text.
std::vector<std::string> nearest_words(std::string_view word,
                                       const std::vector<std::string>& known);

// "wanted one of a, b, c"; of many known words the nearest, and where all of them are.
std::string wanted_words(std::string_view word, const std::vector<std::string>& known,
                         std::string_view all);

}  // namespace torch_cudnn_ext
