// WHAT is computed: the problems of all families as one type, their texts and their keys. Knows
// nothing of algorithms, backends or devices.
//
// Each family has one plain struct in a header of its own. `fields()` lists its fields once: the
// key, the text and the text's parser all come from that list. A `required` field is always in a
// text. A `written` one is too, but whoever writes a text by hand may leave it out. An `optional`
// field is in a text if it differs from its default, and so is the `layout` of a derived tensor.
// `validate()` throws a ValueError that names the field.
#pragma once

#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "problems/activation.h"
#include "problems/affine_grid.h"
#include "problems/batch_norm.h"
#include "problems/convolution.h"
#include "problems/ctc.h"
#include "problems/dropout.h"
#include "problems/grid_sample.h"
#include "problems/layer_norm.h"
#include "problems/lrn.h"
#include "problems/matmul.h"
#include "problems/pooling.h"
#include "problems/reduction.h"
#include "problems/rnn.h"
#include "problems/softmax.h"
#include "problems/transform.h"

namespace torch_cudnn_ext {

// In the order of listings.
using Problem =
    std::variant<ConvolutionProblem, SoftmaxProblem, PoolingProblem, BatchNormProblem, RnnProblem,
                 AffineGridProblem, GridSampleProblem, DropoutProblem, CtcProblem, LayerNormProblem,
                 LrnProblem, ActivationProblem, MatmulProblem, ReduceProblem, TransformProblem>;

const char* family_of(const Problem& problem);
std::string pass_of(const Problem& problem);                 // "fwd"
std::vector<std::string> passes_of(const Problem& problem);  // all of its family
int64_t alignment_of_tensors(const Problem& problem);
std::string op_of(const Problem& problem);  // "conv_fwd"
std::string problem_text(const Problem& problem);
Problem parse_problem(std::string_view text);  // throws ValueError; canonical and valid

// Every field with its text, also those that problem_text leaves out; and the names of the fields
// of an operator such as "conv_fwd".
std::vector<std::pair<std::string, std::string>> problem_fields(const Problem& problem);
std::vector<std::string> field_names(std::string_view op);  // throws ValueError

// All that distinguishes two problems, as words: hashed and compared without allocation.
class Key {
 public:
  void push(int64_t word) {
    TORCH_INTERNAL_ASSERT_DEBUG_ONLY(count_ < static_cast<int>(words_.size()));
    words_[count_++] = word;
  }
  void finish();
  uint64_t hash() const { return hash_; }
  bool operator==(const Key& other) const;

 private:
  std::array<int64_t, 80> words_;
  int count_ = 0;
  uint64_t hash_ = 0;
};

void append_key(Key& key, const Problem& problem);

}  // namespace torch_cudnn_ext
