// The problem of recurrent networks.
#pragma once

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

enum class RnnCell : uint8_t { relu, tanh, lstm, gru };  // the values are cuDNN's
inline constexpr EnumName<RnnCell> kRnnCells[] = {{RnnCell::relu, "relu"},
                                                  {RnnCell::tanh, "tanh"},
                                                  {RnnCell::lstm, "lstm"},
                                                  {RnnCell::gru, "gru"}};
inline const auto& enum_names(RnnCell) { return kRnnCells; }

enum class RnnBias : uint8_t { none, single, twice };  // single: of the input alone
inline constexpr EnumName<RnnBias> kRnnBiases[] = {
    {RnnBias::none, "none"}, {RnnBias::single, "single"}, {RnnBias::twice, "double"}};
inline const auto& enum_names(RnnBias) { return kRnnBiases; }

enum class RnnLengths : uint8_t { full, packed };  // of the sequences of a batch
inline constexpr EnumName<RnnLengths> kRnnLengths[] = {{RnnLengths::full, "full"},
                                                       {RnnLengths::packed, "packed"}};
inline const auto& enum_names(RnnLengths) { return kRnnLengths; }

// A recurrent network of several layers over x, which is [time, batch, input]. For a packed batch
// these are the sizes of the padded one; its tensors are [time * batch, input], and their first
// rows hold the steps of all sequences, as in PyTorch's PackedSequence. All parameters are one
// tensor (problems/rnn_layout.h).
struct RnnProblem {
  static constexpr const char* kFamily = "rnn";

  Pass pass = Pass::fwd;
  RnnCell cell = RnnCell::lstm;
  TensorSpec x;
  int64_t hidden = 1;
  int64_t proj = 0;  // 0: hidden states are not projected
  int64_t layers = 1;
  bool bidirectional = false;
  RnnBias bias = RnnBias::twice;
  bool skip = false;   // the first layer's input is added to each gate without a matrix
  double dropout = 0;  // between layers
  RnnLengths lengths = RnnLengths::full;
  bool train = false;  // saves what the backward reads
  c10::ScalarType compute = c10::ScalarType::Float;
  static constexpr int64_t alignment = 16;

  int64_t steps() const { return x.sizes[0]; }
  int64_t batch() const { return x.sizes[1]; }
  int64_t input() const { return x.sizes[2]; }
  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t gates() const { return cell == RnnCell::lstm ? 4 : cell == RnnCell::gru ? 3 : 1; }
  int64_t state() const { return proj > 0 ? proj : hidden; }  // elements of a hidden state
  c10::ScalarType default_compute() const { return compute_dtype(x.dtype); }
  void canonicalise();
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("cell", p.cell);
    visit.required("x", p.x);
    visit.required("hidden", p.hidden);
    visit.optional("proj", p.proj, int64_t{0});
    visit.written("layers", p.layers, int64_t{1});
    visit.written("bidirectional", p.bidirectional, false);
    visit.written("bias", p.bias, RnnBias::twice);
    visit.optional("skip", p.skip, false);
    visit.optional("dropout", p.dropout, 0.0);
    visit.written("lengths", p.lengths, RnnLengths::full);
    visit.written("train", p.train, p.pass == Pass::bwd);
    visit.written("compute", p.compute, p.default_compute());
  }
};

}  // namespace torch_cudnn_ext
