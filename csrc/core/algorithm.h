// HOW a problem is computed: a value that prints, parses and compares, and never a position in a
// list. Knows which backends have a name, and nothing else of them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_cudnn_ext {

// backend:name/key=value/..., e.g. legacy:winograd_nonfused/math=fma or graph:eng67/k2=1/k13=0.
struct Algorithm {
  std::string backend;
  std::string name;
  std::vector<std::pair<std::string, std::string>> options;

  const std::string* option(std::string_view key) const;
  Algorithm with(std::string key, std::string value) const;
  std::string text() const;
  // PyTorch's own kernel.
  bool is_baseline() const { return backend == "aten" && name == "default"; }
  bool operator==(const Algorithm& other) const {
    return backend == other.backend && name == other.name && options == other.options;
  }
  bool operator!=(const Algorithm& other) const { return !(*this == other); }
};

inline const Algorithm kBaseline{"aten", "default", {}};

Algorithm parse_algorithm(std::string_view text);  // throws ValueError

// The backends that a text may name, in the order of tables and listings.
const std::vector<std::string>& backend_names();
void add_backend_name(const std::string& name);

// An enumerated algorithm of cuDNN's classic API, and our name for it.
struct LegacyName {
  int value;
  const char* enumerator;   // CUDNN_CONVOLUTION_FWD_ALGO_FFT
  const char* name;         // fft
  const char* theano_name;  // nullptr if Theano had none
};

// A math type of the classic API; the value is cudnnMathType_t's.
struct MathType {
  int value;
  const char* text;
};
inline constexpr MathType kMathTypes[] = {
    {0, "default"}, {1, "tensor_op"}, {2, "tensor_op_allow_conversion"}, {3, "fma"}};
const MathType* find_math_type(std::string_view text);  // nullptr if there is none

// The algorithm that a user's text means for one operator and pass, which `op` names in messages.
// The text may be the algorithm's own, or an integer, enumerator, short name or Theano name of the
// classic API. Throws ValueError.
Algorithm resolve_algorithm(std::string_view text, const std::string& op,
                            const std::vector<LegacyName>& legacy_names);

}  // namespace torch_cudnn_ext
